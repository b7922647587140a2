package rests

import (
	"os"
	"testing"
)

func TestShortWorkTakesNoTimer(t *testing.T) {
	all := taken()
	defer given(all)
	var walked Walked
	for range 1_000 {
		walked.After(100) // it would wait for a timer for ever
	}
	var bytes Bytes
	bytes.After(bytesToRest - 1)
}

func TestLongWorkRestsAgainAndAgainByTheSameTimers(t *testing.T) {
	var walked Walked
	var bytes Bytes
	for range 3 * mostTimers {
		walked.After(walkedToRest)
		bytes.After(bytesToRest)
		if walked != 0 || bytes != 0 {
			t.Fatal("no rest was taken")
		}
	}
	all := taken()
	defer given(all)
	for _, each := range all {
		if each.file == nil {
			t.Fatal("a timer was not used")
		}
	}
}

func TestARestWithoutATimerOfTheSystem(t *testing.T) {
	closed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	all := taken()
	given([]*timer{{closed}})
	rest()
	if without := <-timers; without.wait() {
		t.Fatal("it has waited by a closed timer")
	}
	given(all)
}

// taken returns all timers, which nobody has then.
func taken() []*timer {
	all := make([]*timer, mostTimers)
	for at := range all {
		all[at] = <-timers
	}
	return all
}

func given(all []*timer) {
	for _, each := range all {
		timers <- each
	}
}
