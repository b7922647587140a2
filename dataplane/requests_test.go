package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const largest = 1 << 20

// sizes serves calls that are answered with the length of their request, and returns its address.
func sizes(t *testing.T, requests *Requests) string {
	t.Helper()
	at, _ := answering(t, NewQuotas(quotaBytes), func(_ any, caller grpc.ServerStream) error {
		messages, err := requests.Of(caller)
		if err != nil {
			return err
		}
		found, err := messages.Only(math.MaxInt)
		if err != nil {
			return err
		}
		size := binary.BigEndian.AppendUint32(nil, uint32(len(found.data)))
		found.free()
		return holdingIn(caller.Context()).Answer(caller, size)
	})
	return at
}

func sized(t *testing.T, at string, size int) error {
	t.Helper()
	calls := NewCalls(4*largest, insecure.NewCredentials(), nil)
	defer calls.Drop(at, 0)
	ctx, end := context.WithTimeout(context.Background(), 20*time.Second)
	defer end()
	data, err := calls.Make(ctx, at, "/a/B", make([]byte, size))
	if err == nil && binary.BigEndian.Uint32(data) != uint32(size) {
		t.Errorf("%d bytes arrived of %d", binary.BigEndian.Uint32(data), size)
	}
	return err
}

// announce begins a call by hand, whose message is said to be so long, and sends only its first bytes.
func announce(t *testing.T, at string, size int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.Write([]byte(http2.ClientPreface))
	framer := http2.NewFramer(conn, conn)
	framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/a/B"}, {":authority", at},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	framer.WriteData(1, false, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), "begin"...))
	go func() { // pings and windows; what comes does not matter
		for {
			if _, err := framer.ReadFrame(); err != nil {
				return
			}
		}
	}()
	return conn
}

func roomLeft(requests *Requests, bytes int64) bool {
	if !requests.room.TryAcquire(bytes) {
		return false
	}
	requests.room.Release(bytes)
	return true
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what, "never came")
		}
	}
}

func within(t *testing.T, time time.Duration) {
	t.Helper()
	was := arrivesWithin
	arrivesWithin = time
	t.Cleanup(func() { arrivesWithin = was })
}

func TestRequestsOfAllSizesArriveWhole(t *testing.T) {
	requests := NewRequests(largest, largest)
	at := sizes(t, requests)
	for _, size := range []int{0, 1, smallBytes, smallBytes + 1, pieceBytes, pieceBytes + 1, largest - 1, largest} {
		if err := sized(t, at, size); err != nil {
			t.Fatal(size, err)
		}
	}
	if err := sized(t, at, largest+1); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "larger than max") {
		t.Fatal(err)
	}
	if !roomLeft(requests, largest) {
		t.Fatal("there is less room than before")
	}
}

func TestALargeRequestWaitsForRoomAndSmallOnesDoNot(t *testing.T) {
	requests := NewRequests(largest, largest)
	at := sizes(t, requests)
	holder := announce(t, at, largest)
	waitFor(t, "the request", func() bool { return !roomLeft(requests, 1) })
	done := make(chan error, 1)
	go func() { done <- sized(t, at, smallBytes+1) }()
	for range 20 {
		if err := sized(t, at, smallBytes); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("a large one did not wait: %v", err)
	default:
	}
	holder.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestWhoSendsNothingMakesRoomAfterATime(t *testing.T) {
	within(t, 300*time.Millisecond)
	requests := NewRequests(largest, largest)
	at := sizes(t, requests)
	announce(t, at, largest)
	waitFor(t, "the request", func() bool { return !roomLeft(requests, 1) })
	waitFor(t, "room", func() bool { return roomLeft(requests, largest) })
	if err := sized(t, at, largest); err != nil {
		t.Fatal(err)
	}
}

func TestALargeRequestForWhichThereIsNoRoomIsRefusedAfterATime(t *testing.T) {
	within(t, 300*time.Millisecond)
	requests := NewRequests(largest, largest)
	at := sizes(t, requests)
	requests.room.Acquire(context.Background(), largest)
	if err := sized(t, at, largest); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "no room") {
		t.Fatal(err)
	}
	if err := sized(t, at, smallBytes); err != nil {
		t.Fatal(err)
	}
}

func TestLargeRequestsDoNotFillWhatWaitsForAServerThatTakesNothing(t *testing.T) {
	link := unlinked(t)
	room := NewRequests(largest, 9*largest)
	for range 9 {
		room.room.Acquire(context.Background(), largest)
		large := &request{data: make([]byte, largest), leave: func() { room.room.Release(largest) }}
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			_, err := link.Call(ctx, nil, "", get, large)
			done <- err
		}()
		leave()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
	}
	if len(link.out) >= 2*largest {
		t.Fatalf("%d bytes wait", len(link.out))
	}
	if !roomLeft(room, 9*largest) {
		t.Fatal("those who left keep their room")
	}
}
