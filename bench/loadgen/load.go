package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"metronome"
)

const (
	// Within this time all targets must be reached at the start.
	startTimeout  = 5 * time.Second
	sweepInterval = 10 * time.Millisecond
	// Pause of a closed loop that found no connection.
	rest = 10 * time.Millisecond
	// Most timer events a second: to wake for each takes more processor time than to send.
	beatsMax = 2_000
)

var errLeft = errors.New("the server has left")

// load sends requests and takes their answers. One lock guards all of it: it runs on one core and needs only a part of
// it, so nothing waits for the lock.
type load struct {
	options options
	path    string      // of gRPC's calls
	began   time.Time   // when its clock was 0
	tls     *tls.Config // nil: nothing is encrypted

	lock     sync.Mutex
	work     work
	links    []*link
	byTarget [][]*link
	turn     int
	wires    map[*wire]bool
	waiting  []*call // until a first attempt to connect has ended
	spare    []*call
	underWay int
	stopping bool          // no further requests
	idle     chan struct{} // closed when no request is under way any more
	record   *record
}

func newLoad(o options) *load {
	l := &load{
		options: o, began: time.Now(), work: workOf(o),
		byTarget: make([][]*link, len(o.Targets)), wires: map[*wire]bool{}, idle: make(chan struct{}),
		record: newRecord(o),
	}
	if service, isGRPC := dialectOf(o).(grpcDialect); isGRPC {
		l.path = service.path(o.Method)
	}
	for range o.Connections {
		for number, target := range o.Targets {
			each := &link{load: l, target: target, wasReady: make(chan struct{})}
			l.links = append(l.links, each)
			l.byTarget[number] = append(l.byTarget[number], each)
		}
	}
	return l
}

// now returns the time of the load's clock, in nanoseconds.
func (l *load) now() int64 {
	return int64(time.Since(l.began))
}

// run does what the options say, or less if it is interrupted, and returns the report; an error if it could not run.
func (l *load) run(interrupted context.Context) (*report, error) {
	running, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	if l.tls, err = l.options.tlsConfig(); err != nil {
		return nil, err
	}
	if err := l.connect(running, interrupted); err != nil {
		return nil, err
	}
	go l.sweep(running)

	began := l.now() + int64(seconds(l.options.WarmupS))
	ends := began + int64(seconds(l.options.DurationS))
	l.lock.Lock()
	l.record.measure(began, ends)
	l.lock.Unlock()
	sending, stopSending := context.WithCancel(interrupted)
	defer stopSending()
	failed := make(chan error, 1)
	if l.options.Rate > 0 {
		go func() { failed <- l.sendAtRate(sending) }()
	} else {
		l.sendInTurn()
	}
	if isTerminal(os.Stderr) {
		go l.tell(running)
	}

	waitUntil := func(at int64) {
		select {
		case <-time.After(time.Duration(at - l.now())):
		case <-interrupted.Done():
		}
	}
	waitUntil(began)
	usedBefore := processorTime()
	waitUntil(ends)
	used := processorTime() - usedBefore
	stopSending()
	if l.options.Rate > 0 {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	l.lock.Lock()
	l.record.ends = min(ends, max(began, l.now()))
	l.stopping = true
	l.checkIdle()
	l.lock.Unlock()
	<-l.idle

	l.lock.Lock()
	defer l.lock.Unlock()
	return l.record.report(l.options, l.began.Add(time.Duration(began)), used)
}

// connect makes all connections.
func (l *load) connect(running, interrupted context.Context) error {
	for _, each := range l.links {
		go each.keep(running)
	}
	late := time.After(startTimeout)
	for _, each := range l.links {
		select {
		case <-each.wasReady:
		case <-interrupted.Done():
			return errors.New("interrupted")
		case <-late:
			l.lock.Lock()
			defer l.lock.Unlock()
			return fmt.Errorf("target %s can't be reached: %s", each.target, each.lastError)
		}
	}
	return nil
}

// sendInTurn begins a closed loop.
func (l *load) sendInTurn() {
	l.lock.Lock()
	defer l.lock.Unlock()
	for range l.options.Concurrency {
		l.next(&call{}, l.now())
	}
}

// sendAtRate sends requests when they are due, until it is stopped.
func (l *load) sendAtRate(sending context.Context) error {
	each := int(math.Ceil(l.options.Rate / beatsMax)) // requests a beat
	beats, err := metronome.New(l.options.Rate / float64(each))
	if err != nil {
		return err
	}
	context.AfterFunc(sending, beats.Stop)
	// The metronome's time plus this is the load's.
	offset := l.now() - metronome.Now()
	for beat := 0; ; {
		due, err := beats.Wait()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		l.lock.Lock()
		for ; due > 0; due-- {
			at := beats.At(beat) + offset
			l.record.addDelay(at, l.now()-at)
			for range each {
				l.next(l.spareCall(), at)
			}
			beat++
		}
		l.lock.Unlock()
	}
}

func (l *load) spareCall() *call {
	if len(l.spare) == 0 {
		return &call{}
	}
	last := len(l.spare) - 1
	taken := l.spare[last]
	l.spare = l.spare[:last]
	return taken
}

// next sends a new request.
func (l *load) next(c *call, due int64) {
	c.due = due
	l.work.draw(c)
	l.underWay++
	l.dispatch(c)
}

// dispatch gives the call to a connection that may take it; connections take turns.
func (l *load) dispatch(c *call) {
	links := l.links
	if c.target >= 0 {
		links = l.byTarget[c.target]
	}
	l.turn++
	var connecting, failing *link
	for number := range links {
		each := links[(l.turn+number)%len(links)]
		switch {
		case each.takesCalls():
			c.sentTo = each.target
			each.current.speaks.send(c)
			each.current.wake()
			return
		case each.isFailing:
			failing = each
		default:
			connecting = each
		}
	}
	if connecting != nil {
		l.waiting = append(l.waiting, c)
		return
	}
	l.end(c, notConnected, failing.lastError)
}

// redispatch dispatches the calls that wait for a connection again.
func (l *load) redispatch() {
	waiting := l.waiting
	l.waiting = nil
	for _, each := range waiting {
		l.dispatch(each)
	}
}

// answered implements listener.
func (l *load) answered(c *call, message []byte) {
	l.work.judge(c, message)
}

// ended implements listener.
func (l *load) ended(c *call, as outcome, message string) {
	if as == ok && l.work.complete(c) && c.verdict == ok {
		l.dispatch(c)
		return
	}
	l.end(c, as, message)
}

// unseen implements listener.
func (l *load) unseen(c *call) {
	l.record.addResent(c.due)
	l.dispatch(c)
}

// end records the outcome of a call; a closed loop goes on with the next one.
func (l *load) end(c *call, as outcome, message string) {
	at := l.now()
	whole := c.conclude(as)
	l.record.add(c, whole, message, at)
	l.underWay--
	switch {
	case l.stopping:
		l.checkIdle()
	case l.options.Rate > 0:
		l.spare = append(l.spare, c)
	case whole == notConnected:
		time.AfterFunc(rest, func() {
			l.lock.Lock()
			defer l.lock.Unlock()
			if !l.stopping {
				l.next(c, l.now())
			}
		})
	default:
		l.next(c, at)
	}
}

func (l *load) checkIdle() {
	if l.stopping && l.underWay == 0 {
		close(l.idle)
	}
}

// sweep ends requests that have timed out.
func (l *load) sweep(running context.Context) {
	ticks := time.NewTicker(sweepInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-running.Done():
			return
		}
		l.lock.Lock()
		due := l.now() - int64(l.options.timeout())
		for each := range l.wires {
			each.speaks.expire(due)
			each.wake()
		}
		var expired []*call
		l.waiting = slices.DeleteFunc(l.waiting, func(c *call) bool {
			if c.due > due {
				return false
			}
			expired = append(expired, c)
			return true
		})
		for _, each := range expired {
			l.end(each, timedOut, "there was no connection")
		}
		l.lock.Unlock()
	}
}

// open begins to use a link's new socket.
func (l *load) open(of *link, socket net.Conn) *wire {
	l.lock.Lock()
	defer l.lock.Unlock()
	speaks := l.speak(bufio.NewReaderSize(socket, readBuffer), of.target)
	w := &wire{
		traffic: speaks.common(), speaks: speaks,
		link: of, socket: socket, awake: make(chan struct{}, 1), left: make(chan struct{}),
	}
	l.wires[w] = true
	w.wake()
	return w
}

// speak begins what is said on a new connection.
func (l *load) speak(input *bufio.Reader, target string) protocol {
	if l.options.Kind == kindRedis {
		return newRedisConnection(input, l)
	}
	return newConnection(input, l.scheme(), target, l.path, l.options.TimeoutMs, l)
}

// take has a connection take what was read, or a read error. It returns whether the connection has ended.
func (l *load) take(w *wire, err error) (hasEnded bool) {
	l.lock.Lock()
	defer l.lock.Unlock()
	wasReady := w.isReady
	if err == nil {
		err = w.speaks.receive()
	}
	switch {
	case err != nil:
		if wasReady && !w.speaks.isDone() {
			l.record.connections.Lost++
		}
		w.speaks.lose(err.Error())
		w.leave(err)
	case w.isLeaving:
		if w.leave(errLeft) {
			l.record.connections.GoAway++
		}
	case w.isReady && !wasReady:
		l.record.connections.Opened++
		w.socket.SetReadDeadline(time.Time{})
		w.link.current, w.link.isFailing = w, false
		w.link.once.Do(func() { close(w.link.wasReady) })
		l.redispatch()
	}
	if !w.speaks.isDone() {
		w.wake()
		return false
	}
	delete(l.wires, w)
	return true
}

// takeOutput moves a connection's output into an empty buffer.
func (l *load) takeOutput(w *wire, into *bytes.Buffer) {
	l.lock.Lock()
	defer l.lock.Unlock()
	*into, w.output = w.output, *into
	// Requests may have waited for room in it.
	w.speaks.pump()
	w.wake()
}

func (l *load) failedToConnect(of *link, err error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	of.isFailing, of.lastError = true, err.Error()
	l.record.connections.FailedAttempts++
	l.redispatch()
}

// tell reports progress on standard error.
func (l *load) tell(running context.Context) {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for before := (counts{}); ; {
		select {
		case <-ticks.C:
		case <-running.Done():
			return
		}
		l.lock.Lock()
		now, at := l.record.requests.counts(), l.now()-l.record.began
		l.lock.Unlock()
		log.Printf("%4d s %8d ok/s %8d failed/s", at/int64(time.Second), now.OK-before.OK, now.Failed-before.Failed)
		before = now
	}
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// processorTime returns the processor time that this process has used, in seconds.
func processorTime() float64 {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(unix.TimevalToNsec(used.Utime) + unix.TimevalToNsec(used.Stime)).Seconds()
}
