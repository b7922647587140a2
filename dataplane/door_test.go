package main

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const places = 8

func from(t *testing.T, port int) context.Context {
	return peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{Port: port}})
}

func entered(t *testing.T, d *Door, ctx context.Context, takes int, longest time.Duration) *visit {
	t.Helper()
	inside, err := d.Enter(ctx, takes, longest)
	if err != nil {
		t.Fatal(err)
	}
	return inside
}

// arrives waits until so many wait.
func arrives(d *Door, waiting int) {
	for {
		d.mutex.Lock()
		now := d.waiting
		d.mutex.Unlock()
		if now == waiting {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOneConnectionAfterTheOtherIsLetIn(t *testing.T) {
	door := NewDoor(places)
	full := entered(t, door, t.Context(), places, time.Hour)
	var mutex sync.Mutex
	var order []int
	var all sync.WaitGroup
	waiting := 0
	flooder, other := from(t, 1), from(t, 2)
	come := func(who int, ctx context.Context) {
		all.Add(1)
		go func() {
			defer all.Done()
			inside := entered(t, door, ctx, places, time.Hour)
			mutex.Lock()
			order = append(order, who)
			mutex.Unlock()
			inside.Leave()
		}()
		waiting++
		arrives(door, waiting)
	}
	for range 10 {
		come(1, flooder)
	}
	come(2, other)
	full.Leave()
	full.Leave() // again does no harm
	all.Wait()
	if len(order) != 11 || order[1] != 2 {
		t.Fatalf("the other one waits for the flooder: %v", order)
	}
	if door.taken != 0 || door.waiting != 0 || len(door.lines) != 0 || door.turns.Len() != 0 || door.inside.Len() != 0 {
		t.Fatalf("it isn't as it was: %+v", door)
	}
}

func TestWhoTakesLongKeepsNobodyOut(t *testing.T) {
	door := NewDoor(places)
	for range 3 * places { // nobody leaves
		entered(t, door, t.Context(), 1, longestBeginning)
	}
	if door.taken > places {
		t.Fatalf("%d are inside", door.taken)
	}
}

func TestALargeCallWaitsForRoomAndIsNotOvertaken(t *testing.T) {
	door := NewDoor(places)
	small := entered(t, door, t.Context(), 1, time.Hour)
	large := make(chan *visit)
	go func() { large <- entered(t, door, from(t, 1), places, time.Hour) }()
	arrives(door, 1)
	next := make(chan *visit)
	go func() { next <- entered(t, door, from(t, 2), 1, time.Hour) }()
	arrives(door, 2)
	small.Leave()
	inside := <-large
	arrives(door, 1)
	inside.Leave()
	(<-next).Leave()
}

func TestWhoWaitsMayLeave(t *testing.T) {
	door := NewDoor(places)
	full := entered(t, door, t.Context(), places, time.Hour)
	ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
	defer leave()
	if _, err := door.Enter(ctx, 1, time.Hour); status.Code(err) != codes.DeadlineExceeded {
		t.Fatal(err)
	}
	if door.waiting != 0 || len(door.lines) != 0 {
		t.Fatalf("who has left still waits: %+v", door)
	}
	full.Leave()
	if door.taken != 0 {
		t.Fatalf("it isn't as it was: %+v", door)
	}
}
