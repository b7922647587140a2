module lookup-load

go 1.24.0

require (
	google.golang.org/grpc v1.61.0
	google.golang.org/protobuf v1.36.5
	metronome v0.0.0
)

require (
	github.com/golang/protobuf v1.5.4 // indirect
	golang.org/x/net v0.33.0 // indirect
	golang.org/x/sys v0.28.0 // indirect
	golang.org/x/text v0.21.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20231106174013-bbf56f31fb17 // indirect
)

replace metronome => ../../../tools/metronome
