// Package rests has goroutines that work long give way to all others.
//
// One processor runs all of this program. Gosched gives it to goroutines that can run already; what has come over the network
// is looked at when there is none, or 10 ms later. So lookups waited 7 ms while a checksum was made. Go's own timers last a
// millisecond when nothing else is to be done, which is ten times as long as the work; the system's don't.
package rests

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// So much is moved between two rests: a tenth of a millisecond for a checksum.
	bytesToRest = 128 << 10
	// So much is walked over: a thousand entries of a hundred bytes, which take some tenths of a millisecond. What is read
	// for one page is mostly less.
	walkedToRest = 512 << 10
	// An entry takes as long as so many bytes of one.
	ofEntry = 400

	restFor = 20 * time.Microsecond
	// How many rest at the same time; others wait for them.
	mostTimers = 8
)

// Bytes is how many a goroutine has moved or summed since its last rest.
type Bytes int

// After is called when so many more were worked on.
func (b *Bytes) After(bytes int) {
	runtime.Gosched()
	if *b += Bytes(bytes); *b >= bytesToRest {
		*b = 0
		rest()
	}
}

// Walked is what a goroutine has walked over since its last rest.
type Walked int

// After is called after each entry, of so many bytes.
func (w *Walked) After(bytes int) {
	if *w += Walked(bytes + ofEntry); *w >= walkedToRest {
		*w = 0
		rest()
	}
}

// timer is one of the system's.
type timer struct{ file *os.File } // nil: it is not made yet

// timers are those that nobody rests by.
var timers = func() chan *timer {
	all := make(chan *timer, mostTimers)
	for range mostTimers {
		all <- &timer{}
	}
	return all
}()

func rest() {
	one := <-timers
	if !one.wait() {
		time.Sleep(restFor)
	}
	timers <- one
}

// wait waits until the timer has expired; false if that failed.
func (t *timer) wait() bool {
	if t.file == nil {
		made, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		if err != nil {
			return false
		}
		t.file = os.NewFile(uintptr(made), "rests")
	}
	raw, err := t.file.SyscallConn()
	if err != nil {
		return false
	}
	once := unix.ItimerSpec{Value: unix.NsecToTimespec(restFor.Nanoseconds())}
	var failed error
	if err := raw.Control(func(made uintptr) { failed = unix.TimerfdSettime(int(made), 0, &once, nil) }); err != nil || failed != nil {
		return false
	}
	var expirations [8]byte
	_, err = t.file.Read(expirations[:])
	return err == nil
}
