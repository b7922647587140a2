module metronome

go 1.24.0

require golang.org/x/sys v0.28.0
