// Command loadgen loads gRPC servers, or Redis, with lookups and checks every value they return. README.md explains its
// options and its report.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

const (
	exitCouldNotRun = 1
	exitWrong       = 3
	// The work takes only a part of one core; waking threads to share it would add nearly half as much.
	coresMax = 1
	// The heap is small, so it may grow to nine times its live size before it is collected.
	garbagePercent = 800
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("loadgen: ")
	runtime.GOMAXPROCS(coresMax)
	debug.SetGCPercent(garbagePercent)
	made, err := run(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		log.Print(err)
		os.Exit(exitCouldNotRun)
	}
	if made.hasWrong() {
		log.Print("there were wrong or missing values")
		os.Exit(exitWrong)
	}
}

// run runs the load that a command line asks for, and prints the report.
func run(arguments []string) (*report, error) {
	o, err := parse(arguments, os.Stderr)
	if err != nil {
		return nil, err
	}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	made, err := newLoad(o).run(interrupted)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(os.Stdout).Encode(made); err != nil {
		return nil, fmt.Errorf("the report can't be written: %w", err)
	}
	return made, nil
}
