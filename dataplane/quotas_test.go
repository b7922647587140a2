package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

const (
	aGet   = "/statehouse.v1.QueryService/Get"
	aQuery = "/statehouse.v1.QueryService/QueryStore"
)

// connected returns the quota of a new connection, as a listener makes it.
func connected(quotas *Quotas, from string) *Quota {
	addr, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		panic(err)
	}
	return NewBounded(nil, 1<<20, 1<<20, quotas).take(addr)
}

// came has a call come.
func came(t *testing.T, from *Quota, method string, header metadata.MD) *holding {
	t.Helper()
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: from})
	ctx, err := from.all.Tap(ctx, &tap.Info{FullMethodName: method, Header: header})
	if err != nil {
		t.Fatal(err)
	}
	h := holdingIn(ctx)
	h.see()
	return h
}

// fill has calls of a connection come until one is refused, and returns how many were not.
func fill(t *testing.T, from *Quota) int {
	t.Helper()
	for count := 0; ; count++ {
		if came(t, from, aGet, nil).isRefused {
			return count
		}
	}
}

// isWhole checks that nothing is held any more.
func isWhole(q *Quotas) error {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.taken != 0 || q.unseen != 0 || len(q.addresses) != 0 {
		return fmt.Errorf("there is left: %d bytes, %d unseen, addresses %v", q.taken, q.unseen, q.addresses)
	}
	return nil
}

func TestWhoeverIsGreedyLeavesRoomForOthers(t *testing.T) {
	quotas := NewQuotas(1000 * bytesOfLookup)
	first := connected(quotas, "10.0.0.1:1")
	if count := fill(t, first); count != 333 { // a third
		t.Fatalf("a single connection has %d calls", count)
	}
	second := connected(quotas, "10.0.0.1:2")
	if count := fill(t, second); count < 100 {
		t.Fatalf("a second connection of the address has %d calls", count)
	}
	for port := range 100 {
		fill(t, connected(quotas, fmt.Sprintf("10.0.0.1:%d", 3+port)))
	}
	if part := first.address.taken * 100 / quotas.bytes; part < 48 || part > 50 {
		t.Fatalf("an address alone has %d %%", part)
	}
	if count := fill(t, connected(quotas, "10.0.0.2:1")); count < 150 {
		t.Fatalf("another address has %d calls", count)
	}
}

func TestManyThatAreGreedyAtOnceGetTheSameAndLeaveRoom(t *testing.T) {
	quotas := NewQuotas(1000 * bytesOfLookup)
	var greedy []*Quota
	for each := range 80 { // of 20 addresses
		greedy = append(greedy, connected(quotas, fmt.Sprintf("10.0.0.%d:%d", each%20, each+1)))
	}
	for range 100 {
		for _, each := range greedy {
			came(t, each, aGet, nil)
		}
	}
	for _, each := range quotas.addresses {
		if calls := each.taken / bytesOfLookup; calls < 40 || calls > 50 {
			t.Fatalf("an address of 20 has %d calls of 1000", calls)
		}
	}
	if count := fill(t, connected(quotas, "10.0.1.1:1")); count < 10 {
		t.Fatalf("another address has %d calls", count)
	}
}

func TestAnAddressIsANetworkWithIPv6(t *testing.T) {
	quotas := NewQuotas(1000 * bytesOfLookup)
	for _, same := range [][2]string{
		{"[2001:db8::1]:1", "[2001:db8::ffff:1]:2"}, {"10.0.0.1:1", "[::ffff:10.0.0.1]:2"}, {"[fe80::1%1]:1", "[fe80::2%2]:2"},
	} {
		if connected(quotas, same[0]).address != connected(quotas, same[1]).address {
			t.Errorf("%v count as two", same)
		}
	}
	for _, differ := range [][2]string{{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1"}, {"10.0.0.1:1", "10.0.0.2:1"}} {
		if connected(quotas, differ[0]).address == connected(quotas, differ[1]).address {
			t.Errorf("%v count as one", differ)
		}
	}
}

func TestACallTakesMoreWithItsHeadersAndMessages(t *testing.T) {
	quotas := NewQuotas(quotaBytes)
	from := connected(quotas, "10.0.0.1:1")
	h := came(t, from, aGet, metadata.MD{"name": {"value", "other"}})
	want := bytesOfLookup + 2*bytesOfHeader + 4 + 5 + 4 + 5
	if quotas.taken != want {
		t.Fatalf("%d bytes instead of %d", quotas.taken, want)
	}
	for _, size := range []int{100, 70, 300} {
		if err := h.receive(size); err != nil {
			t.Fatal(err)
		}
	}
	if quotas.taken != want+300 {
		t.Fatalf("%d bytes instead of %d", quotas.taken, want+300)
	}
	if err := h.receive(quotaBytes); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	if count := came(t, from, aQuery, nil); quotas.taken != want+300+bytesOfForwarded {
		t.Fatalf("a call that is passed on takes %d bytes", count.bytes)
	}
}

// dropping is a call's stream; a test says when its answers are written.
type dropping struct {
	grpc.ServerStream
	answers []*message
}

func (d *dropping) SendMsg(m any) error {
	d.answers = append(d.answers, m.(*message))
	return nil
}

func TestWhateverHappensAllIsGivenBack(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		quotas := NewQuotas(100 * bytesOfLookup)
		var conns []*Quota
		var calls []*holding
		stream := &dropping{}
		for range 400 {
			switch what := random.IntN(8); {
			case what == 0 || len(conns) == 0:
				conns = append(conns, connected(quotas, fmt.Sprintf("10.0.0.%d:%d", random.IntN(3), len(conns)+1)))
			case what <= 2 || len(calls) == 0:
				h := came(t, conns[random.IntN(len(conns))], []string{aGet, aQuery}[random.IntN(2)], nil)
				if h.isRefused {
					h.end()
				} else {
					calls = append(calls, h)
				}
			case what == 3:
				calls[random.IntN(len(calls))].receive(random.IntN(smallBytes))
			case what == 4:
				calls[random.IntN(len(calls))].Pass(stream, make([]byte, random.IntN(2*smallBytes)))
			case what == 5:
				at := random.IntN(len(calls))
				if random.IntN(2) == 0 {
					calls[at].Answer(stream, make([]byte, random.IntN(2*smallBytes)))
				}
				calls[at].stay()
				calls[at].end()
				calls[at].end()
				calls = append(calls[:at], calls[at+1:]...)
			case what == 6 && len(stream.answers) > 0:
				at := random.IntN(len(stream.answers))
				stream.answers[at].quota.written(stream.answers[at].bytes)
				stream.answers = append(stream.answers[:at], stream.answers[at+1:]...)
			case what == 7 && random.IntN(4) == 0:
				at := random.IntN(len(conns))
				conns[at].close()
				conns = append(conns[:at], conns[at+1:]...)
			}
			sum := 0
			for _, each := range quotas.addresses {
				if sum += each.taken; each.taken < 0 {
					t.Fatalf("seed %d: %d bytes", seed, each.taken)
				}
			}
			if sum != quotas.taken {
				t.Fatalf("seed %d: addresses have %d bytes, all have %d", seed, sum, quotas.taken)
			}
		}
		for _, each := range calls {
			each.end()
		}
		for _, each := range conns {
			each.close()
		}
		for _, each := range stream.answers { // of connections that are closed
			each.quota.written(each.bytes)
		}
		if err := isWhole(quotas); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestAnAnswerTakesThePlaceOfItsCall(t *testing.T) {
	quotas := NewQuotas(100 * bytesOfLookup)
	from := connected(quotas, "10.0.0.1:1")
	var calls []*holding
	for {
		h := came(t, from, aGet, nil)
		if h.isRefused {
			break
		}
		calls = append(calls, h)
	}
	stream := &dropping{}
	if err := calls[0].Answer(stream, make([]byte, bytesOfLookup)); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("an answer for which there is no room: %v", err)
	}
	for _, each := range calls {
		if err := each.Answer(stream, make([]byte, bytesOfLookup-bytesOfAnswer)); err != nil {
			t.Fatal(err)
		}
		each.end()
	}
	if !came(t, from, aGet, nil).isRefused {
		t.Fatal("answers that wait to be written take nothing")
	}
	for _, each := range stream.answers {
		each.quota.written(each.bytes)
	}
	if quotas.taken != 0 {
		t.Fatalf("%d bytes are left", quotas.taken)
	}
}

func TestNothingIsReceivedWhileTooManyAreUnseen(t *testing.T) {
	quotas := NewQuotas(quotaBytes)
	quotas.unseen = maxUnseen - 1
	from := connected(quotas, "10.0.0.1:1")
	ctx, _ := quotas.Tap(peer.NewContext(context.Background(), &peer.Peer{Addr: from}), &tap.Info{FullMethodName: aGet})
	read := make(chan struct{}, 3)
	for range 3 {
		go func() {
			quotas.await()
			read <- struct{}{}
		}()
	}
	select {
	case <-read:
		t.Fatal("it doesn't wait")
	case <-time.After(50 * time.Millisecond):
	}
	holdingIn(ctx).see()
	for range 3 {
		select {
		case <-read:
		case <-time.After(10 * time.Second):
			t.Fatal("it waits on")
		}
	}
}

func TestAConnectionIsNotReadMeanwhile(t *testing.T) {
	quotas := NewQuotas(quotaBytes)
	at, _ := answering(t, quotas, func(any, grpc.ServerStream) error { return nil })
	quotas.mutex.Lock()
	quotas.unseen = maxUnseen
	quotas.mutex.Unlock()
	r := dialed(t, at, 65535)
	r.begin(aGet, true)
	time.Sleep(50 * time.Millisecond)
	if r.outcome("0") != 0 {
		t.Fatal("a call is taken")
	}
	quotas.mutex.Lock()
	quotas.unseen = 0
	quotas.seen.Signal()
	quotas.mutex.Unlock()
	waitFor(t, "an answer", func() bool { return r.outcome("0") == 1 })
}

func TestAnAddressThatComesBackIsNotForgottenByACallFromBefore(t *testing.T) {
	quotas := NewQuotas(quotaBytes)
	before := connected(quotas, "10.0.0.1:1")
	h := came(t, before, aGet, nil)
	stream := &dropping{}
	if err := h.Answer(stream, nil); err != nil {
		t.Fatal(err)
	}
	before.close()
	now := connected(quotas, "10.0.0.1:2")
	h.end()
	if connected(quotas, "10.0.0.1:3").address != now.address {
		t.Fatal("the address counts twice")
	}
}

// answering serves calls of all connections as `serve` does, and returns its address.
func answering(t *testing.T, quotas *Quotas, serve grpc.StreamHandler) (string, *grpc.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	how := serving(options{maxMessageBytes: largest}, quotas)
	server := grpc.NewServer(append(how, grpc.UnknownServiceHandler(quotas.Handle(serve, func() {})))...)
	go server.Serve(NewBounded(listener, 100, 100, quotas))
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server
}

// raw is a connection whose frames a test sends.
type raw struct {
	*http2.Framer
	net.Conn
	block   bytes.Buffer
	encoder *hpack.Encoder
	streams uint32

	mutex    sync.Mutex
	outcomes map[string]int // of calls: grpc-status, or "reset"
}

// dialed connects, with a window for the answers of each call.
func dialed(t *testing.T, at string, window uint32) *raw {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r := &raw{Framer: http2.NewFramer(conn, conn), Conn: conn, outcomes: map[string]int{}}
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.encoder = hpack.NewEncoder(&r.block)
	io.WriteString(conn, http2.ClientPreface)
	r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	go func() {
		for {
			found, err := r.ReadFrame()
			if err != nil {
				return
			}
			r.mutex.Lock()
			switch frame := found.(type) {
			case *http2.MetaHeadersFrame:
				for _, each := range frame.RegularFields() {
					if each.Name == "grpc-status" {
						r.outcomes[each.Value]++
					}
				}
			case *http2.RSTStreamFrame:
				if frame.ErrCode != http2.ErrCodeNo {
					r.outcomes["reset"]++
				}
			}
			r.mutex.Unlock()
		}
	}()
	return r
}

// begin begins a call; nothing follows but what the test sends.
func (r *raw) begin(path string, isAll bool, further ...string) uint32 {
	fields := []string{
		":method", "POST", ":scheme", "http", ":path", path, ":authority", "a", "content-type", "application/grpc", "te", "trailers",
	}
	fields = append(fields, further...)
	r.block.Reset()
	for at := 0; at < len(fields); at += 2 {
		r.encoder.WriteField(hpack.HeaderField{Name: fields[at], Value: fields[at+1]})
	}
	r.streams++
	id := 2*r.streams - 1
	r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.block.Bytes(), EndHeaders: true, EndStream: isAll})
	return id
}

func (r *raw) outcome(name string) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.outcomes[name]
}

func TestManyCallsOfHeadersOnlyAreRefusedAndAnotherConnectionIsNot(t *testing.T) {
	const fitting = 100
	quotas := NewQuotas(3 * fitting * (bytesOfLookup + 1024))
	requests := NewRequests(largest, largest)
	at, _ := answering(t, quotas, func(_ any, caller grpc.ServerStream) error {
		messages, err := requests.Of(caller)
		if err != nil {
			return err
		}
		found, err := messages.Only(math.MaxInt)
		if err != nil {
			return err
		}
		return holdingIn(caller.Context()).Answer(caller, found.data)
	})
	flooder := dialed(t, at, 65535)
	for range 3000 {
		flooder.begin(aGet, false)
	}
	waitFor(t, "refusals", func() bool { return flooder.outcome("8") >= 3000-fitting*5/4 })
	other := dialed(t, at, 65535)
	for done := range 50 {
		id := other.begin(aGet, false)
		other.WriteData(id, true, append([]byte{0, 0, 0, 0, 5}, "hello"...))
		waitFor(t, "an answer", func() bool { return other.outcome("0") == done+1 })
	}
	if accepted := 3000 - flooder.outcome("8"); accepted < fitting/2 {
		t.Fatalf("%d calls are taken", accepted)
	}
	// One of two messages, which would lie there until the call is answered.
	id := other.begin(aGet, false)
	other.WriteData(id, false, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	waitFor(t, "a refusal", func() bool { return other.outcome("12") == 1 })
	flooder.Close()
	has := func(bytes int) bool {
		quotas.mutex.Lock()
		defer quotas.mutex.Unlock()
		return quotas.taken >= bytes && quotas.taken < bytes+bytesOfLookup+1024
	}
	waitFor(t, "the end of what the flooder took", func() bool { return has(0) })
	other.WriteData(other.begin(aGet, false), false, append([]byte{0}, binary.BigEndian.AppendUint32(nil, 60_000)...))
	waitFor(t, "bytes of a message that is announced", func() bool { return has(60_000) })
	other.Close()
	waitFor(t, "the end of all", func() bool { return isWhole(quotas) == nil })
}

func TestCallsThatGRPCAnswersByItselfGiveBackWhatTheyTook(t *testing.T) {
	quotas := NewQuotas(quotaBytes)
	at, _ := answering(t, quotas, func(_ any, caller grpc.ServerStream) error {
		<-caller.Context().Done()
		return caller.Context().Err()
	})
	r := dialed(t, at, 65535)
	for range 100 {
		r.begin("malformed", true)
		r.begin("/a/B", false, "grpc-encoding", "unknown")
		r.begin("/a/B", false, "grpc-timeout", "1n")
		r.begin("/a/B", false, "grpc-timeout", "wrong")
		id := r.begin("/a/B", false)
		r.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	waitFor(t, "statuses", func() bool { return r.outcome("12") == 200 })
	waitFor(t, "what they took", func() bool {
		quotas.mutex.Lock()
		defer quotas.mutex.Unlock()
		return quotas.taken == 0 && quotas.unseen == 0
	})
}

func TestAnswersThatNobodyTakesAreBounded(t *testing.T) {
	const size, calls = 100 << 10, 200
	for name, end := range map[string]func(*raw){
		"by closing": func(r *raw) { r.Close() },
		"by leaving": func(r *raw) {
			for each := range r.streams {
				r.WriteRSTStream(2*each+1, http2.ErrCodeCancel)
			}
		},
		"by taking them": func(r *raw) {
			r.WriteWindowUpdate(0, math.MaxInt32-65535)
			for each := range r.streams {
				r.WriteWindowUpdate(2*each+1, 2*size)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			quotas := NewQuotas(20 * size)
			at, _ := answering(t, quotas, func(_ any, caller grpc.ServerStream) error {
				return holdingIn(caller.Context()).Answer(caller, make([]byte, size))
			})
			r := dialed(t, at, 0)
			for range calls {
				r.begin(aGet, true)
			}
			waitFor(t, "refusals", func() bool { return r.outcome("8") >= calls-7 })
			quotas.mutex.Lock()
			waiting := quotas.taken
			quotas.mutex.Unlock()
			if waiting > quotas.bytes/3 || waiting < 2*size {
				t.Fatalf("%d bytes wait", waiting)
			}
			end(r)
			waitFor(t, "all", func() bool {
				quotas.mutex.Lock()
				defer quotas.mutex.Unlock()
				return quotas.taken == 0
			})
			if name == "by taking them" {
				waitFor(t, "an answer", func() bool { return r.outcome("0") > 0 })
			}
			r.Close()
			waitFor(t, "the end", func() bool { return isWhole(quotas) == nil })
		})
	}
}

func TestSmallAnswersOfAStreamAreNotRefused(t *testing.T) {
	quotas := NewQuotas(10 * bytesOfForwarded)
	h := came(t, connected(quotas, "10.0.0.1:1"), aQuery, nil)
	stream := &dropping{}
	for range 5 {
		if err := h.Pass(stream, make([]byte, smallBytes)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Pass(stream, make([]byte, smallBytes+1)); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	if want := bytesOfForwarded + 5*(smallBytes+bytesOfAnswer); quotas.taken != want {
		t.Fatalf("%d bytes instead of %d", quotas.taken, want)
	}
}

func TestCallsThatArePassedOnGiveBackWhatTheyTook(t *testing.T) {
	behind, _ := answering(t, NewQuotas(quotaBytes), func(_ any, caller grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(caller); method == "/a/Answer" {
			return caller.SendMsg(&message{data: []byte("answer")})
		}
		<-caller.Context().Done()
		return caller.Context().Err()
	})
	upstream, err := grpc.NewClient(behind, grpc.WithTransportCredentials(insecure.NewCredentials()), messages(largest))
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	quotas := NewQuotas(quotaBytes)
	at, _ := answering(t, quotas, Forward(upstream, NewRequests(largest, largest), NewDoor(placesOfOthers)))
	r := dialed(t, at, 65535)
	asked := []byte{0, 0, 0, 0, 1, 'x'}
	for range 20 {
		r.WriteData(r.begin("/a/Answer", false), true, asked)
		r.WriteData(r.begin("/a/Endless", false, "grpc-timeout", "100m"), true, asked)
	}
	waitFor(t, "answers", func() bool { return r.outcome("0") == 20 })
	waitFor(t, "deadlines", func() bool { return r.outcome("4")+r.outcome("reset") == 20 })
	var left []uint32
	for range 20 {
		left = append(left, r.begin("/a/Endless", false))
		r.WriteData(left[len(left)-1], true, asked)
	}
	waitFor(t, "those calls", func() bool {
		quotas.mutex.Lock()
		defer quotas.mutex.Unlock()
		return quotas.taken > 20*bytesOfForwarded
	})
	for _, each := range left {
		r.WriteRSTStream(each, http2.ErrCodeCancel)
	}
	r.Close()
	waitFor(t, "the end of all", func() bool { return isWhole(quotas) == nil })
}
