package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// A frame is the length of what follows in four bytes, its kind in one, a call's number in eight, and a content; numbers
// are big-endian. The other end is statehouse/link/link.py.
const (
	// Each end gives its own in its first frame, and is alone when they differ.
	linkVersion = 13
	headBytes   = 4 + 1 + 8

	// From the proxy. A call's content is its time in milliseconds, in four bytes, its caller's number, in eight, how many
	// lookups are under way that the server knows nothing of, in four, and the request. Without TLS only a caller's address
	// is known.
	listening  = 1 // the number is the port's; the version, in one byte
	cantListen = 2 // why
	get        = 3
	batchGet   = 4
	left       = 5 // the caller of that number
	called     = 6 // what came of a call to be made: the answer, or
	callFailed = 7 // a serialized google.rpc.Status
	// The number is the caller's, of whom calls follow: address (its length in a byte before it), authorization (in two)
	// and certificate with those shown with it, DER.
	callerShown = 8
	callerGone  = 9  // the number is the caller's, of whom no further calls follow
	cantEncrypt = 10 // why
	// A part of the request of the call of that number, which is to be begun with the rest of it.
	part = 11
	// A request that nodes have been asked for already. After what a call has before its request: its kind in one byte,
	// statehouse.control.v1.HandedRequest after its length in four, and the request.
	handed = 12
	// What came of the call of that number in a HandedRequest: its outcome in a byte, and content.
	expressEnded = 13
	expressSums  = 14 // statehouse.control.v1.ExpressSums
	// Calls, as get.
	scan         = 15
	scanWindows  = 16
	scanSessions = 17
	proxySums    = 18 // statehouse.control.v1.ProxySums
	orderEnded   = 19 // what came of the order of that number: statehouse.control.v1.EngineAnswer
	storeReport  = 20 // what has become of a store: statehouse.control.v1.EngineReport
	callsEnded   = 21 // after stop, all calls; stores are open until the link is closed
	servingSums  = 22 // statehouse.control.v1.ServingSums
	// Calls, as get.
	count         = 23
	fetchWindows  = 24
	fetchSessions = 25
	getAsOf       = 26
	getHistory    = 27

	// To the proxy.
	serveCalls = 1 // the version, in one byte
	stop       = 2
	answer     = 3
	failure    = 4  // a serialized google.rpc.Status
	call       = 5  // to be made: its time, the address and the method, each after its length in a byte, and the request
	leave      = 6  // the call of that number, which nobody waits for
	drop       = 7  // a connection: the milliseconds that calls may go on, and the address
	routes     = 8  // statehouse.control.v1.ExpressSnapshot
	alive      = 9  // the server lives; the number of the snapshot that holds, or 0
	order      = 10 // statehouse.control.v1.EngineOrder
	mayServe   = 11 // statehouse.control.v1.ServingSnapshot
	holds      = 12 // the snapshot of that number holds; until when by the monotonic clock, in microseconds, in eight bytes
	facts      = 13 // statehouse.control.v1.ServingFacts
	permit     = 14 // statehouse.control.v1.ServingPermit
	// All permits.
	withdraw = 15

	noDeadline = math.MaxUint32
	// What may wait to be written: a server that is frozen must not fill the memory.
	maxQueued = 64 << 20
	// A request of more takes the server so long that others have as much time after it, up to a bound.
	hugeBytes    = 1 << 20
	longestPause = 250 * time.Millisecond
	// Most bytes of what came of calls that go along with a request, so that this is not a huge one.
	mostKnown = 512 << 10
	// With so much waiting to be written, what will be said again isn't said.
	mostSaid = 1 << 20
	// So much memory of the output stays after it has been written.
	mostSpare = 1 << 20
)

var errTakesNothing = status.Error(codes.Unavailable, "the server behind the proxy takes nothing")

type outcome struct {
	kind    byte
	content []byte
}

// Link carries calls to the process behind the proxy, many at a time, and their outcomes back. What is public is to be set
// before Run.
type Link struct {
	OnServe, OnStop func()
	// May be left out. A snapshot that can't be read is an error.
	OnSnapshot func(data []byte) error
	OnAlive    func(number uint64)
	// Takes an order about stores, and says later what came of it.
	OnOrder func(number uint64, content []byte)
	// At a node. What can't be read is an error.
	OnServing func(data []byte) error
	OnHolds   func(number uint64, until int64)
	OnFacts   func(data []byte) error
	// It returns an error if they can't be read.
	OnPermit func(data []byte) error
	// Withdraws all permits.
	OnWithdraw func()
	// The caller of that number is gone.
	OnGone    func(caller uint64)
	Elsewhere func() uint32
	Liveness  *Liveness

	conn    net.Conn
	calls   *Calls
	numbers atomic.Uint64 // of calls that go along with a request
	wake    chan struct{}
	// In it when no large request waits to be written: they must not fill what waits, and have small ones refused.
	turn    chan struct{}
	writing sync.Mutex
	// Guards what follows.
	mutex   sync.Mutex
	out     []byte
	spare   []byte
	number  uint64
	isLarge bool          // one is among what waits
	piece   chan struct{} // of a piece of a huge one among what waits, to be closed when it is written
	callers uint64        // the last number of one
	waiting map[uint64]chan outcome
	making  map[uint64]context.CancelFunc
}

// NewLink makes the link of a connection. `calls` makes those that are asked for.
func NewLink(conn net.Conn, calls *Calls) *Link {
	l := &Link{
		OnSnapshot: func([]byte) error { return nil }, OnAlive: func(uint64) {}, OnOrder: func(uint64, []byte) {},
		OnServing: func([]byte) error { return nil }, OnHolds: func(uint64, int64) {}, OnFacts: func([]byte) error { return nil },
		OnPermit: func([]byte) error { return nil }, OnWithdraw: func() {}, OnGone: func(uint64) {},
		Elsewhere: func() uint32 { return 0 },
		conn:      conn, calls: calls, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		waiting: map[uint64]chan outcome{}, making: map[uint64]context.CancelFunc{},
	}
	l.Liveness = NewLiveness(l.endWaiting)
	l.turn <- struct{}{}
	return l
}

// Run carries frames until the other end is gone.
func (l *Link) Run() error {
	broken := make(chan error, 2)
	go func() {
		for range l.wake {
			if err := l.Flush(); err != nil {
				broken <- err
				return
			}
		}
	}()
	go func() { broken <- l.receive() }()
	if err := <-broken; !errors.Is(err, io.EOF) {
		return err
	}
	return errors.New("the server is gone")
}

// Call has a request answered, which it frees; an error carries a gRPC status. `who` is nil if nothing is known of callers.
func (l *Link) Call(ctx context.Context, who *Caller, authorization string, kind byte, query *request) ([]byte, error) {
	return l.call(ctx, who, authorization, kind, query, nil)
}

// call tells the router what comes of calls to nodes meanwhile. If that is all that was asked for, it counts.
func (l *Link) call(
	ctx context.Context, who *Caller, authorization string, kind byte, query *request, later <-chan ended,
) ([]byte, error) {
	deadline, hasDeadline := ctx.Deadline()
	ctx, end := inTime(ctx)
	defer end()
	if query.isLarge() {
		select {
		case <-l.turn:
		case <-ctx.Done():
			query.free()
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-l.Liveness.Spell().Done():
			query.free()
			return nil, errSilent
		}
	}
	isHuge := len(query.data) > hugeBytes
	if isHuge {
		began := time.Now()
		defer func() { l.pause(began, query.written) }()
	}
	done := make(chan outcome, 1)
	var number uint64
	if isHuge {
		var err error
		if number, err = l.sendPieces(ctx, query, done); err != nil {
			query.free()
			l.giveUp(number)
			return nil, err
		}
	}
	timeout := uint32(noDeadline)
	if hasDeadline {
		timeout = uint32(min(max(time.Until(deadline).Milliseconds(), 0), noDeadline-1))
	}
	number, err := l.queue(who, authorization, kind, number, timeout, query, done)
	query.free()
	l.awaken()
	if err != nil {
		if isHuge {
			l.giveUp(number)
		}
		return nil, err
	}
	for {
		select {
		case result := <-done:
			if result.kind == answer {
				return result.content, nil
			}
			return nil, statusIn(result.content)
		case result := <-later:
			l.Send(expressEnded, result.call.number, append([]byte{result.kind}, result.content...))
			if result.kind == answered && result.call.isWhole {
				l.mutex.Lock()
				delete(l.waiting, number)
				l.mutex.Unlock()
				return result.content, nil
			}
		case <-ctx.Done():
			l.giveUp(number)
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// endWaiting has the calls fail that wait for a server which has fallen silent, and tells it that their callers have left.
func (l *Link) endWaiting() {
	failed := outcome{failure, serializedStatus(errSilent)}
	l.mutex.Lock()
	for number, done := range l.waiting {
		delete(l.waiting, number)
		l.appendHead(left, number, 0)
		done <- failed
	}
	l.mutex.Unlock()
	l.awaken()
}

// takesNothing returns why the server takes no further call; nil if it does. The mutex is held.
func (l *Link) takesNothing() error {
	if l.Liveness.isSilent.Load() {
		return errSilent
	}
	if len(l.out) > maxQueued {
		return errTakesNothing
	}
	return nil
}

// giveUp tells that the caller of that number has left; nobody waits for what comes of it.
func (l *Link) giveUp(number uint64) {
	l.mutex.Lock()
	delete(l.waiting, number)
	l.appendHead(left, number, 0)
	l.mutex.Unlock()
	l.awaken()
}

// pause gives the turn back once a huge request is written, and others have had as much time as it, which began then.
func (l *Link) pause(began time.Time, written <-chan struct{}) {
	time.AfterFunc(min(time.Since(began), longestPause), func() {
		if written != nil { // else it was refused
			<-written
		}
		l.turn <- struct{}{}
	})
}

// sendPieces sends all of a huge request but its end, and returns the number of its call. It waits until each piece is
// written: what else is to be written goes between them. The server may refuse it by its beginning.
func (l *Link) sendPieces(ctx context.Context, query *request, done chan outcome) (uint64, error) {
	l.mutex.Lock()
	l.number++
	number := l.number
	l.waiting[number] = done
	l.mutex.Unlock()
	for len(query.data) > pieceBytes {
		written := make(chan struct{})
		l.mutex.Lock()
		if err := l.takesNothing(); err != nil {
			l.mutex.Unlock()
			return number, err
		}
		query.written, l.piece = written, written
		l.appendHead(part, number, pieceBytes)
		l.out = append(l.out, query.data[:pieceBytes]...)
		l.mutex.Unlock()
		query.data = query.data[pieceBytes:]
		l.awaken()
		select {
		case <-written:
		case <-ctx.Done():
			return number, status.FromContextError(ctx.Err()).Err()
		case refused := <-done:
			return number, statusIn(refused.content)
		}
		select {
		case refused := <-done:
			return number, statusIn(refused.content)
		default:
		}
	}
	return number, nil
}

// queue queues a call, and returns its number; its outcome will be in `done`. If it is large, it has its turn; if it has
// a number, it is the end of a huge one.
func (l *Link) queue(
	who *Caller, authorization string, kind byte, number uint64, timeout uint32, query *request, done chan outcome,
) (uint64, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	isHuge := number != 0
	// Even if it is refused, the next write gives the turn back; of a huge one that is done when it is over.
	l.isLarge = l.isLarge || (query.isLarge() && !isHuge)
	if err := l.takesNothing(); err != nil {
		return number, err
	}
	callersNumber, err := l.numberOf(who, authorization)
	if err != nil {
		return number, err
	}
	if isHuge { // its outcome may already be there
		query.written = make(chan struct{})
		l.piece = query.written
	} else {
		l.number++
		number = l.number
		l.waiting[number] = done
	}
	l.appendCall(kind, number, timeout, callersNumber, len(query.data))
	l.out = append(l.out, query.data...)
	return number, nil
}

// appendCall appends what a call has before its request; `size` bytes of that follow.
func (l *Link) appendCall(kind byte, number uint64, timeout uint32, caller uint64, size int) {
	l.appendHead(kind, number, 4+8+4+size)
	l.out = binary.BigEndian.AppendUint32(l.out, timeout)
	l.out = binary.BigEndian.AppendUint64(l.out, caller)
	l.out = binary.BigEndian.AppendUint32(l.out, l.Elsewhere())
}

// Waiting returns how many calls wait for the server.
func (l *Link) Waiting() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.waiting)
}

// Hand has a request answered that nodes have been asked for by a snapshot. What comes of those calls later will be in `done`.
func (l *Link) Hand(
	ctx context.Context, who *Caller, authorization string, kind byte, by *snapshot, calls []*sent, done <-chan ended,
	lookups []byte,
) ([]byte, error) {
	told, room := &controlv1.HandedRequest{Snapshot: by.Number}, mostKnown
	for _, each := range calls {
		each.number = l.numbers.Add(1)
		if len(each.came.content) > room {
			each.came = found{kind: unknown}
		}
		room -= len(each.came.content)
		told.Calls = append(told.Calls, each.told())
	}
	known, _ := proto.Marshal(told) // names came from a snapshot, and so are text
	size := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(known)))
	return l.call(ctx, who, authorization, handed, &request{data: slices.Concat(size, known, lookups)}, done)
}

// numberOf returns the number of a caller with an authorization, and tells of one that is new. Under the same lock a
// call is to be queued: so what it names stands before it, and ends after it.
func (l *Link) numberOf(who *Caller, authorization string) (uint64, error) {
	if who == nil {
		return 0, nil
	}
	if number, ok := who.numbers[authorization]; ok {
		return number, nil
	}
	if who.isGone {
		return 0, status.Error(codes.Canceled, "the caller is gone")
	}
	l.callers++
	if gone := who.add(authorization, l.callers); gone != 0 {
		l.appendHead(callerGone, gone, 0)
		l.OnGone(gone)
	}
	l.appendHead(callerShown, l.callers, 1+len(who.address)+2+len(authorization)+len(who.shown))
	l.out = append(l.out, byte(len(who.address)))
	l.out = append(l.out, who.address...)
	l.out = binary.BigEndian.AppendUint16(l.out, uint16(len(authorization)))
	l.out = append(l.out, authorization...)
	l.out = append(l.out, who.shown...)
	return l.callers, nil
}

// KnownNumber returns the number of a caller with an authorization; not of one of whom the server has not heard. It is 0 where
// nothing is known of callers.
func (l *Link) KnownNumber(who *Caller, authorization string) (number uint64, isKnown bool) {
	if who == nil {
		return 0, true
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	number, isKnown = who.numbers[authorization]
	return number, isKnown
}

// Forget tells that a caller's connection is closed.
func (l *Link) Forget(who *Caller) {
	l.mutex.Lock()
	who.isGone = true
	for _, number := range who.numbers {
		l.appendHead(callerGone, number, 0)
		l.OnGone(number)
	}
	clear(who.numbers)
	l.mutex.Unlock()
	l.awaken()
}

// Send queues a frame.
func (l *Link) Send(kind byte, number uint64, content []byte) {
	l.mutex.Lock()
	l.appendHead(kind, number, len(content))
	l.out = append(l.out, content...)
	l.mutex.Unlock()
	l.awaken()
}

// Say queues a frame that tells how things stand; not if much waits to be written, because it will be said again.
func (l *Link) Say(kind byte, content []byte) {
	l.mutex.Lock()
	says := len(l.out) < mostSaid
	if says {
		l.appendHead(kind, 0, len(content))
		l.out = append(l.out, content...)
	}
	l.mutex.Unlock()
	if says {
		l.awaken()
	}
}

// Flush writes what is queued: what has come together while the last write was under way goes as one.
func (l *Link) Flush() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mutex.Lock()
	out, isLarge, piece := l.out, l.isLarge, l.piece
	l.out, l.isLarge, l.piece = l.spare, false, nil
	l.mutex.Unlock()
	_, err := l.conn.Write(out)
	l.mutex.Lock()
	l.spare = nil
	if cap(out) <= mostSpare {
		l.spare = out[:0]
	}
	l.mutex.Unlock()
	if isLarge {
		l.turn <- struct{}{}
	}
	if piece != nil {
		close(piece)
	}
	return err
}

func (l *Link) appendHead(kind byte, number uint64, size int) {
	l.out = binary.BigEndian.AppendUint32(l.out, uint32(headBytes-4+size))
	l.out = append(l.out, kind)
	l.out = binary.BigEndian.AppendUint64(l.out, number)
}

func (l *Link) awaken() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *Link) receive() error {
	reader := bufio.NewReaderSize(l.conn, 1<<16)
	var head [headBytes]byte
	for isFirst := true; ; isFirst = false {
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return err
		}
		kind, number := head[4], binary.BigEndian.Uint64(head[5:])
		size := binary.BigEndian.Uint32(head[:])
		if size < headBytes-4 {
			return fmt.Errorf("a frame of %d bytes", size)
		}
		content := make([]byte, size-(headBytes-4))
		if _, err := io.ReadFull(reader, content); err != nil {
			return err
		}
		l.Liveness.Heard()
		if isFirst && (kind != serveCalls || !bytes.Equal(content, []byte{linkVersion})) {
			return errors.New("the server is of another version than this program: build it again")
		}
		switch kind {
		case serveCalls:
			l.OnServe()
		case stop:
			l.OnStop()
		case answer, failure:
			l.mutex.Lock()
			done, ok := l.waiting[number]
			delete(l.waiting, number)
			l.mutex.Unlock()
			if ok { // else its caller has left
				done <- outcome{kind, content}
			}
		case call:
			if !l.begin(number, content) {
				return errors.New("a call to be made can't be read")
			}
		case leave:
			l.mutex.Lock()
			end, ok := l.making[number]
			l.mutex.Unlock()
			if ok {
				end()
			}
		case drop:
			grace, target, isRead := splitTime(content)
			if !isRead {
				return errors.New("which connection is to be dropped can't be read")
			}
			l.calls.Drop(string(target), grace)
		case routes:
			if err := l.OnSnapshot(content); err != nil {
				return fmt.Errorf("a snapshot can't be read: %w", err)
			}
		case alive:
			l.Liveness.Expect()
			l.OnAlive(number)
		case order:
			go l.OnOrder(number, content)
		case mayServe:
			if err := l.OnServing(content); err != nil {
				return fmt.Errorf("what a node may answer can't be read: %w", err)
			}
		case holds:
			if len(content) != 8 {
				return errors.New("until when a snapshot holds can't be read")
			}
			l.OnHolds(number, int64(binary.BigEndian.Uint64(content)))
		case facts:
			if err := l.OnFacts(content); err != nil {
				return fmt.Errorf("facts can't be read: %w", err)
			}
		case permit:
			if err := l.OnPermit(content); err != nil {
				return fmt.Errorf("a permit can't be read: %w", err)
			}
		case withdraw:
			l.OnWithdraw()
		default:
			return fmt.Errorf("a frame of kind %d: is the proxy of the same version as its server?", kind)
		}
	}
}

// begin makes a call of its own; not if it can't be read.
func (l *Link) begin(number uint64, content []byte) bool {
	timeout, content, hasTime := splitTime(content)
	target, content, hasTarget := splitText(content)
	method, request, hasMethod := splitText(content)
	if !hasTime || !hasTarget || !hasMethod {
		return false
	}
	ctx, end := context.WithTimeout(context.Background(), timeout)
	l.mutex.Lock()
	l.making[number] = end
	l.mutex.Unlock()
	go func() {
		defer end()
		kind := byte(called)
		data, err := l.calls.Make(ctx, target, method, request)
		if err != nil {
			kind, data = callFailed, serializedStatus(err)
		}
		l.mutex.Lock()
		delete(l.making, number)
		l.mutex.Unlock()
		l.Send(kind, number, data)
	}()
	return true
}

func splitTime(content []byte) (time.Duration, []byte, bool) {
	if len(content) < 4 {
		return 0, nil, false
	}
	return time.Duration(binary.BigEndian.Uint32(content)) * time.Millisecond, content[4:], true
}

func splitText(content []byte) (string, []byte, bool) {
	if len(content) == 0 || len(content) < 1+int(content[0]) {
		return "", nil, false
	}
	end := 1 + int(content[0])
	return string(content[1:end]), content[end:], true
}

func serializedStatus(err error) []byte {
	data, _ := proto.Marshal(status.Convert(err).Proto())
	return data
}

func statusIn(content []byte) error {
	found := &spb.Status{}
	if err := proto.Unmarshal(content, found); err != nil {
		return status.Error(codes.Internal, "unreadable status")
	}
	return status.ErrorProto(found)
}
