// Package metronome beats at a steady rate, for programs that send what is due whatever became of what they sent before.
package metronome

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns nanoseconds of the clock that Python calls time.monotonic().
func Now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// Metronome beats at a steady rate: beat n is at first + n periods of Now's clock. It is a timer of the kernel's, as
// the runtime's own are up to a millisecond late.
type Metronome struct {
	timer  *os.File
	first  int64
	period int64
}

// New returns one whose first beat is a period from now. It beats until it is stopped.
func New(rate float64) (*Metronome, error) {
	period := time.Duration(float64(time.Second) / rate).Nanoseconds()
	first := Now() + period
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("a timer: %w", err)
	}
	beats := unix.ItimerSpec{Interval: unix.NsecToTimespec(period), Value: unix.NsecToTimespec(first)}
	if err := unix.TimerfdSettime(timer, unix.TFD_TIMER_ABSTIME, &beats, nil); err != nil {
		return nil, fmt.Errorf("a timer with a period of %d ns: %w", period, err)
	}
	return &Metronome{os.NewFile(uintptr(timer), "timer"), first, period}, nil
}

// At returns the time of beat n.
func (m *Metronome) At(n int) int64 {
	return m.first + int64(n)*m.period
}

// Wait returns how many beats there were since it last did; os.ErrClosed once it is stopped.
func (m *Metronome) Wait() (uint64, error) {
	var count [8]byte
	_, err := m.timer.Read(count[:])
	return binary.NativeEndian.Uint64(count[:]), err
}

// Stop ends it.
func (m *Metronome) Stop() {
	m.timer.Close()
}
