module metronome

go 1.26.0

require golang.org/x/sys v0.28.0
