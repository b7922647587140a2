package files

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// So much is worked on between two rests: a tenth of a millisecond for a checksum.
	bytesToRest = 128 << 10
	restFor     = 20 * time.Microsecond
)

// rests has a goroutine that works on much give way to all others.
//
// One processor runs all of this program. Gosched gives it to goroutines that can run already; what has come over the network
// is looked at when there is none, or 10 ms later. So lookups waited 7 ms while a checksum was made. Go's own timers last a
// millisecond when nothing else is to be done, which is ten times as long as the work; the system's don't.
type rests struct {
	bytes int
	timer *os.File // nil: the system gave none
}

func newRests() *rests {
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &rests{}
	}
	return &rests{timer: os.NewFile(uintptr(timer), "rests")}
}

// after is called when so many bytes more were worked on.
func (r *rests) after(bytes int) {
	runtime.Gosched()
	if r.bytes += bytes; r.bytes < bytesToRest {
		return
	}
	r.bytes = 0
	if !r.rested() {
		time.Sleep(restFor)
	}
}

// rested waits for the system's timer; false if that failed.
func (r *rests) rested() bool {
	if r.timer == nil {
		return false
	}
	raw, err := r.timer.SyscallConn()
	if err != nil {
		return false
	}
	once := unix.ItimerSpec{Value: unix.NsecToTimespec(restFor.Nanoseconds())}
	var failed error
	if err := raw.Control(func(timer uintptr) { failed = unix.TimerfdSettime(int(timer), 0, &once, nil) }); err != nil || failed != nil {
		return false
	}
	var expirations [8]byte
	_, err = r.timer.Read(expirations[:])
	return err == nil
}

func (r *rests) close() {
	if r.timer != nil {
		_ = r.timer.Close()
	}
}
