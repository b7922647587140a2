package engine

import (
	"fmt"
	"log"
)

// logger takes what Pebble has to say. What it tells of flushes and compactions, metrics tell better.
type logger struct{ path string }

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	log.Printf("%s: %s", l.path, fmt.Sprintf(format, args...))
}

// Fatalf ends the program: Pebble can't go on, and holds its locks. That is so if the list of its files can't be written
// though a file could a moment before. All of its tasks are restored, from what is in files.
func (l logger) Fatalf(format string, args ...any) {
	log.Fatalf("%s: %s", l.path, fmt.Sprintf(format, args...))
}
