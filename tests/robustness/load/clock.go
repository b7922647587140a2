package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// now returns nanoseconds of the clock that Python calls time.monotonic().
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// metronome beats at a steady rate: beat n is at first + n periods of now's clock. It is a timer of the kernel's, as
// the runtime's own are up to a millisecond late.
type metronome struct {
	timer  *os.File
	first  int64
	period int64
}

func newMetronome(rate float64) (*metronome, error) {
	period := time.Duration(float64(time.Second) / rate).Nanoseconds()
	first := now() + period
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("a timer: %w", err)
	}
	beats := unix.ItimerSpec{Interval: unix.NsecToTimespec(period), Value: unix.NsecToTimespec(first)}
	if err := unix.TimerfdSettime(timer, unix.TFD_TIMER_ABSTIME, &beats, nil); err != nil {
		return nil, fmt.Errorf("a timer with a period of %d ns: %w", period, err)
	}
	return &metronome{os.NewFile(uintptr(timer), "timer"), first, period}, nil
}

// at returns the time of beat n.
func (m *metronome) at(n int) int64 {
	return m.first + int64(n)*m.period
}

// wait returns how many beats there were since it last did; os.ErrClosed once it is stopped.
func (m *metronome) wait() (uint64, error) {
	var count [8]byte
	_, err := m.timer.Read(count[:])
	return binary.NativeEndian.Uint64(count[:]), err
}

func (m *metronome) stop() {
	m.timer.Close()
}
