package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

type frame struct {
	kind    byte
	number  uint64
	content []byte
}

// queued takes the frames that wait to be written.
func queued(link *Link) []frame {
	link.mutex.Lock()
	defer link.mutex.Unlock()
	var found []frame
	for out := link.out; len(out) > 0; {
		end := 4 + binary.BigEndian.Uint32(out)
		found = append(found, frame{out[4], binary.BigEndian.Uint64(out[5:]), append([]byte(nil), out[headBytes:end]...)})
		out = out[end:]
	}
	link.out = link.out[:0]
	return found
}

func unlinked(t *testing.T) *Link {
	t.Helper()
	ours, its := net.Pipe()
	t.Cleanup(func() { ours.Close(); its.Close() })
	return NewLink(ours, NewCalls(1<<20, insecure.NewCredentials(), nil))
}

// ask has a lookup queued, whose caller leaves.
func ask(link *Link, who *Caller, authorization string) error {
	ctx, leave := context.WithCancel(context.Background())
	leave()
	_, err := link.Call(ctx, who, authorization, get, &request{data: []byte(authorization)})
	return err
}

func TestEachCallNamesACallerWhoIsKnownAtThatTime(t *testing.T) {
	link := unlinked(t)
	callers := []*Caller{NewCaller("10.0.0.1", []byte("der 1")), NewCaller("fe80::1%eth0", nil)}
	for range 500 {
		who := callers[rand.IntN(len(callers))]
		if err := ask(link, who, fmt.Sprint("Bearer ", rand.IntN(2*maxAuthorizations))); status.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
		if len(who.numbers) > maxAuthorizations || len(who.numbers) != len(who.oldest) {
			t.Fatalf("%d authorizations, %d in order", len(who.numbers), len(who.oldest))
		}
	}
	for _, who := range callers {
		link.Forget(who)
		if err := ask(link, who, "Bearer 1"); status.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
	}
	known, calls := map[uint64]string{}, 0
	for _, each := range queued(link) {
		switch each.kind {
		case callerShown:
			addressEnd := 1 + int(each.content[0])
			size := int(binary.BigEndian.Uint16(each.content[addressEnd:]))
			authorization := string(each.content[addressEnd+2 : addressEnd+2+size])
			certificate := string(each.content[addressEnd+2+size:])
			if address := string(each.content[1:addressEnd]); (address == "10.0.0.1") != (certificate == "der 1") {
				t.Fatalf("%s with certificate %q", address, certificate)
			}
			if _, ok := known[each.number]; ok {
				t.Fatalf("caller %d twice", each.number)
			}
			known[each.number] = authorization
		case callerGone:
			if _, ok := known[each.number]; !ok {
				t.Fatalf("caller %d gone before they came", each.number)
			}
			delete(known, each.number)
		case get:
			calls++
			if known[binary.BigEndian.Uint64(each.content[4:])] != string(each.content[16:]) {
				t.Fatalf("call %d is of somebody else", each.number)
			}
		}
	}
	if len(known) > 0 || calls != 500 {
		t.Fatalf("%d callers are left after %d calls", len(known), calls)
	}
}

func TestOfNobodyNothingIsTold(t *testing.T) {
	link := unlinked(t)
	ask(link, nil, "")
	found := queued(link)
	if len(found) != 2 || found[0].kind != get || binary.BigEndian.Uint64(found[0].content[4:]) != 0 {
		t.Fatalf("%v", found)
	}
}

func TestOneAuthorizationOfBoundedLengthIsTaken(t *testing.T) {
	known := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: NewCaller("a", nil)})
	with := func(values ...string) context.Context {
		return metadata.NewIncomingContext(known, metadata.MD{authorizationKey: values})
	}
	if who, authorization, err := callerIn(with("Bearer x")); who == nil || authorization != "Bearer x" || err != nil {
		t.Fatal(who, authorization, err)
	}
	if who, authorization, err := callerIn(known); who == nil || authorization != "" || err != nil {
		t.Fatal(who, authorization, err)
	}
	for _, ctx := range []context.Context{with("a", "b"), with(string(make([]byte, 1<<16)))} {
		if _, _, err := callerIn(ctx); status.Code(err) != codes.Unauthenticated {
			t.Fatal(err)
		}
	}
}

func TestWithoutTLSOnlyTheAddressOfACallerIsKnown(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	link := unlinked(t)
	conn, info, err := Plain(link).ServerHandshake(here)
	if err != nil {
		t.Fatal(err)
	}
	known := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: info})
	ctx := metadata.NewIncomingContext(known, metadata.MD{authorizationKey: []string{"a", "b"}})
	who, authorization, err := callerIn(ctx)
	if who == nil || who.address != addressOf(here) || authorization != "" || err != nil {
		t.Fatal(who, authorization, err)
	}
	ask(link, who, authorization)
	ask(link, who, authorization)
	conn.Close()
	told := map[byte]int{}
	for _, each := range queued(link) {
		told[each.kind]++
		if each.kind == callerShown && len(each.content) != 1+len(who.address)+2 {
			t.Fatalf("more than an address: %q", each.content)
		}
	}
	if told[callerShown] != 1 || told[get] != 2 || told[callerGone] != 1 {
		t.Fatalf("%v", told)
	}
	if number, isKnown := link.KnownNumber(who, authorization); isKnown {
		t.Fatalf("one that is gone is %d", number)
	}
}

func TestAServerOfAnotherVersionIsLeft(t *testing.T) {
	for name, first := range map[string][]byte{
		"no version": {0, 0, 0, 9, serveCalls, 0, 0, 0, 0, 0, 0, 0, 0},
		"another":    {0, 0, 0, 10, serveCalls, 0, 0, 0, 0, 0, 0, 0, 0, linkVersion + 1},
		"too late":   {0, 0, 0, 10, stop, 0, 0, 0, 0, 0, 0, 0, 0, linkVersion},
	} {
		t.Run(name, func(t *testing.T) {
			ours, its := net.Pipe()
			defer its.Close()
			link := NewLink(ours, nil)
			link.OnServe = func() { t.Error("it is served") }
			link.OnStop = link.OnServe
			ended := make(chan error, 1)
			go func() { ended <- link.Run() }()
			its.Write(first)
			select {
			case err := <-ended:
				if err == nil {
					t.Fatal("no error")
				}
			case <-time.After(10 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}
