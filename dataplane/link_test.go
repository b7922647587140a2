package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestAServerThatTakesNothingIsUnavailable(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	link.out = make([]byte, maxQueued+1)
	if _, err := link.Call(context.Background(), nil, "", get, &request{data: []byte("x")}); status.Code(err) != codes.Unavailable {
		t.Fatalf("%v instead of a refusal", err)
	}
	if len(link.waiting) != 0 || len(link.out) != maxQueued+1 {
		t.Fatal("a call that was refused waits nevertheless")
	}
}

func TestAFrozenServerIsGivenOneHugeRequest(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	for range 3 {
		ctx, leave := context.WithTimeout(context.Background(), 300*time.Millisecond)
		huge := &request{data: make([]byte, 2*hugeBytes), leave: func() {}}
		if _, err := link.Call(ctx, nil, "", batchGet, huge); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("%v", err)
		}
		leave()
	}
	if len(link.out) > 2*pieceBytes {
		t.Fatalf("%d bytes wait", len(link.out))
	}
}

func TestSmallRequestsGoBetweenThePiecesOfAHugeOne(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	go link.Run()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	sent := make([]byte, 8*pieceBytes+5)
	for at := range sent {
		sent[at] = byte(at / 7)
	}
	go link.Call(ctx, nil, "", batchGet, &request{data: bytes.Clone(sent), leave: func() {}})
	reader := bufio.NewReader(its)
	var huge []byte
	var kinds []byte
	for isAsked := false; len(huge) < len(sent); {
		kind, content := frameFrom(t, reader)
		kinds = append(kinds, kind)
		switch kind {
		case part:
			huge = append(huge, content...)
		case batchGet:
			huge = append(huge, content[16:]...)
		}
		if !isAsked {
			isAsked = true
			go link.Call(ctx, nil, "", get, &request{data: []byte("small")})
			// A request between is asked for when it is queued: Go may begin the call much later than this goes on.
			waitFor(t, "the small request", func() bool {
				link.mutex.Lock()
				defer link.mutex.Unlock()
				return len(link.waiting) == 2
			})
		}
	}
	if !bytes.Equal(huge, sent) {
		t.Fatal("it is not what was sent")
	}
	if at := bytes.IndexByte(kinds, get); at < 0 || at > 2 || kinds[len(kinds)-1] != batchGet {
		t.Fatalf("frames came as %v", kinds)
	}
}

func TestPiecesOfARequestWhoseCallerLeavesAreGivenUp(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	go link.Run()
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := link.Call(ctx, nil, "", batchGet, &request{data: make([]byte, 8*pieceBytes), leave: func() {}})
		ended <- err
	}()
	reader := bufio.NewReader(its)
	if kind, _ := frameFrom(t, reader); kind != part {
		t.Fatalf("%d instead of a part", kind)
	}
	leave()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	for kind := byte(part); kind != left; {
		kind, _ = frameFrom(t, reader)
	}
}

func TestTheRestOfARequestThatIsRefusedByItsBeginningIsNotSent(t *testing.T) {
	ours, its := net.Pipe()
	defer its.Close()
	link := NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
	link.OnServe = func() {}
	go link.Run()
	ended := make(chan error)
	go func() {
		_, err := link.Call(context.Background(), nil, "", batchGet, &request{data: make([]byte, 64*pieceBytes), leave: func() {}})
		ended <- err
	}()
	reader := bufio.NewReader(its)
	if kind, _ := frameFrom(t, reader); kind != part {
		t.Fatalf("%d instead of a part", kind)
	}
	refusal, _ := proto.Marshal(status.New(codes.InvalidArgument, "too much").Proto())
	frames := binary.BigEndian.AppendUint32(nil, headBytes-4+1)
	frames = append(binary.BigEndian.AppendUint64(append(frames, serveCalls), 0), linkVersion)
	frames = binary.BigEndian.AppendUint32(frames, uint32(headBytes-4+len(refusal)))
	frames = append(binary.BigEndian.AppendUint64(append(frames, failure), 1), refusal...)
	// No further part is read meanwhile, so the refusal is there before the last of them is sent.
	if _, err := its.Write(frames); err != nil {
		t.Fatal(err)
	}
	sent := 1
	for kind := byte(part); kind != left; sent++ {
		kind, _ = frameFrom(t, reader)
	}
	if err := <-ended; status.Code(err) != codes.InvalidArgument || sent > 32 {
		t.Fatal(err, sent)
	}
	if len(link.waiting) != 0 {
		t.Fatal("somebody is still waited for")
	}
}

func frameFrom(t *testing.T, reader io.Reader) (byte, []byte) {
	t.Helper()
	var head [headBytes]byte
	if _, err := io.ReadFull(reader, head[:]); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, binary.BigEndian.Uint32(head[:])-(headBytes-4))
	if _, err := io.ReadFull(reader, content); err != nil {
		t.Fatal(err)
	}
	return head[4], content
}
