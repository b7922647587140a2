module statehouse-proxy

go 1.24.0

require (
	golang.org/x/net v0.42.0
	golang.org/x/sync v0.17.0
	golang.org/x/sys v0.37.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250804133106-a7a43d27e69b
	google.golang.org/grpc v1.76.0
	google.golang.org/protobuf v1.36.6
)

require golang.org/x/text v0.27.0 // indirect

tool google.golang.org/protobuf/cmd/protoc-gen-go
