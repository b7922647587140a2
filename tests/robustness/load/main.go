// Command lookup-load sends lookups to routers at a steady rate, whatever became of the ones before (an open loop), and
// says what came of each. It is a program of its own, and not in Python, so that sending takes little of the machine
// on which the routers and nodes are measured, and adds nothing to the latencies.
//
// It reads a plan, one JSON document, from its standard input and writes an outcome, one line of JSON, for each lookup
// to its standard output. It ends when its standard input does, or on SIGINT: it stops sending, and waits for the
// answers that are due. With -tls-ca it encrypts, and shows the certificate of -tls-certificate and -tls-key.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"time"
)

const (
	// Sending is a small part of one core's work; waking threads to share it would add nearly half as much.
	coresMax = 1
	// Outcomes wait in a buffer for no longer than this.
	flushInterval = 100 * time.Millisecond
	// Outcomes that may wait for a reader that is busy: half a minute's at 300 lookups a second.
	outcomesMax = 10_000
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("lookup-load: ")
	runtime.GOMAXPROCS(coresMax)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	var shown shownFiles
	flag.StringVar(&shown.ca, "tls-ca", "", "certificates that routers' are signed with; none: nothing is encrypted")
	flag.StringVar(&shown.certificate, "tls-certificate", "", "certificate that is shown to routers")
	flag.StringVar(&shown.key, "tls-key", "", "its key")
	flag.Parse()
	transport, err := shown.transport()
	if err != nil {
		return err
	}
	var given plan
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		return fmt.Errorf("the plan on standard input can't be read: %w", err)
	}
	stopped, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()

	outcomes := make(chan outcome, outcomesMax)
	sending := make(chan error, 1)
	go func() {
		defer close(outcomes)
		sending <- send(stopped, given, transport, outcomes)
	}()
	if err := write(outcomes, os.Stdout); err != nil {
		return fmt.Errorf("outcomes can't be written: %w", err)
	}
	return <-sending
}

// write writes a line for each outcome until there are no more.
func write(outcomes <-chan outcome, to io.Writer) error {
	buffer := bufio.NewWriter(to)
	lines := json.NewEncoder(buffer)
	flushes := time.NewTicker(flushInterval)
	defer flushes.Stop()
	for {
		select {
		case each, isOpen := <-outcomes:
			if !isOpen {
				return buffer.Flush()
			}
			if err := lines.Encode(each); err != nil {
				return err
			}
		case <-flushes.C:
			if err := buffer.Flush(); err != nil {
				return err
			}
		}
	}
}
