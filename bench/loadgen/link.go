package main

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
)

const (
	// Limit for an attempt to connect, and then again for the server to be ready.
	connectTimeout = time.Second
	firstBackoff   = 20 * time.Millisecond
	backoffGrowth  = 1.6
	longestBackoff = 200 * time.Millisecond
	readBuffer     = 64 << 10
)

// link keeps a connection to a target. The load's lock guards the fields that change.
type link struct {
	load     *load
	target   string
	wasReady chan struct{} // closed at the first connection
	once     sync.Once     // closes it

	current   *wire // the connection that takes calls; nil: there is none
	isFailing bool  // the last attempt to connect has failed
	lastError string
}

// takesCalls returns whether there is a connection that takes calls.
func (l *link) takesCalls() bool {
	return l.current != nil && !l.current.isLeaving
}

// keep connects again and again.
func (l *link) keep(running context.Context) {
	wait := firstBackoff
	for {
		began := time.Now()
		wasReady, err := l.connect(running)
		if running.Err() != nil {
			return
		}
		if !wasReady {
			l.load.failedToConnect(l, err)
		} else if time.Since(began) > longestBackoff {
			wait = firstBackoff
			continue
		}
		// The attempt failed, or the connection ended immediately.
		select {
		case <-time.After(wait):
		case <-running.Done():
			return
		}
		wait = min(time.Duration(float64(wait)*backoffGrowth), longestBackoff)
	}
}

// connect makes a connection and returns when it takes no more calls: it is lost, or the server leaves and calls under
// way go on. It returns whether the connection ever took calls, and why it no longer does.
func (l *link) connect(running context.Context) (wasReady bool, err error) {
	socket, err := l.load.dial(running, l.target)
	if err != nil {
		return false, err
	}
	w := l.load.open(l, socket)
	stop := context.AfterFunc(running, func() { socket.Close() })
	closed := make(chan struct{})
	go w.write(closed)
	go func() {
		defer stop()
		defer close(closed)
		defer socket.Close()
		w.read()
	}()
	<-w.left
	l.load.lock.Lock()
	defer l.load.lock.Unlock()
	return w.isReady, w.leftFor
}

// wire is a connection with its socket. The load's lock guards the fields that change.
type wire struct {
	*traffic
	speaks  protocol
	link    *link
	socket  net.Conn
	awake   chan struct{} // there may be something to send
	left    chan struct{} // closed when it takes no more calls
	leftFor error
}

// read takes what comes until the connection has ended.
func (w *wire) read() {
	w.socket.SetReadDeadline(time.Now().Add(connectTimeout))
	for {
		if w.link.load.take(w, w.speaks.read()) {
			return
		}
	}
}

// write sends the connection's output; what gathers during one write goes out together in the next.
func (w *wire) write(closed <-chan struct{}) {
	var sending bytes.Buffer
	for {
		select {
		case <-w.awake:
		case <-closed:
			return
		}
		w.link.load.takeOutput(w, &sending)
		// A socket that can't be written to can't be read from either, and the reader reports the error.
		w.socket.Write(sending.Bytes())
		sending.Reset()
	}
}

// wake has the writer send the output.
func (w *wire) wake() {
	if w.output.Len() == 0 {
		return
	}
	select {
	case w.awake <- struct{}{}:
	default:
	}
}

// leave stops calls from going to this connection. It returns whether they did until now.
func (w *wire) leave(why error) bool {
	if w.leftFor != nil {
		return false
	}
	w.leftFor = why
	if w.link.current == w {
		w.link.current = nil
	}
	close(w.left)
	return true
}
