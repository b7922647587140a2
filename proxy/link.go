package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A frame is the length of what follows in four bytes, its kind in one, a call's number in eight, and a content; numbers
// are big-endian. The other end is statehouse/rpc/link.py.
const (
	headBytes = 4 + 1 + 8

	// From the proxy. A call's content is its time in milliseconds, in four bytes, and the request.
	listening  = 1 // the number is the port's
	cantListen = 2 // why
	get        = 3
	batchGet   = 4
	left       = 5 // the caller of that number
	called     = 6 // what came of a call to be made: the answer, or
	callFailed = 7 // a serialized google.rpc.Status

	// To the proxy.
	serve   = 1
	stop    = 2
	answer  = 3
	failure = 4 // a serialized google.rpc.Status
	call    = 5 // to be made: its time, the address and the method, each after its length in a byte, and the request
	leave   = 6 // the call of that number, which nobody waits for
	drop    = 7 // a connection: the milliseconds that calls may go on, and the address

	noDeadline = math.MaxUint32
	// What may wait to be written: a server that is frozen must not fill the memory.
	maxQueued = 64 << 20
)

type outcome struct {
	kind    byte
	content []byte
}

// Link carries calls to the process behind the proxy, many at a time, and their outcomes back. OnServe and OnStop are to
// be set before Run.
type Link struct {
	OnServe, OnStop func()

	conn    net.Conn
	calls   *Calls
	wake    chan struct{}
	writing sync.Mutex
	// Guards what follows.
	mutex   sync.Mutex
	out     []byte
	spare   []byte
	number  uint64
	waiting map[uint64]chan outcome
	making  map[uint64]context.CancelFunc
}

// NewLink makes the link of a connection. `calls` makes those that are asked for.
func NewLink(conn net.Conn, calls *Calls) *Link {
	return &Link{
		conn: conn, calls: calls, wake: make(chan struct{}, 1),
		waiting: map[uint64]chan outcome{}, making: map[uint64]context.CancelFunc{},
	}
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

// Call has a request answered; an error carries a gRPC status.
func (l *Link) Call(ctx context.Context, kind byte, request []byte) ([]byte, error) {
	timeout := uint32(noDeadline)
	if deadline, is := ctx.Deadline(); is {
		timeout = uint32(min(max(time.Until(deadline).Milliseconds(), 0), noDeadline-1))
	}
	ctx, end := inTime(ctx)
	defer end()
	done := make(chan outcome, 1)
	l.mutex.Lock()
	if len(l.out) > maxQueued {
		l.mutex.Unlock()
		return nil, status.Error(codes.Unavailable, "the server behind the proxy takes nothing")
	}
	l.number++
	number := l.number
	l.waiting[number] = done
	l.appendHead(kind, number, 4+len(request))
	l.out = binary.BigEndian.AppendUint32(l.out, timeout)
	l.out = append(l.out, request...)
	l.mutex.Unlock()
	l.awaken()
	select {
	case it := <-done:
		if it.kind == answer {
			return it.content, nil
		}
		return nil, statusIn(it.content)
	case <-ctx.Done():
		l.mutex.Lock()
		delete(l.waiting, number)
		l.appendHead(left, number, 0)
		l.mutex.Unlock()
		l.awaken()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Send queues a frame.
func (l *Link) Send(kind byte, number uint64, content []byte) {
	l.mutex.Lock()
	l.appendHead(kind, number, len(content))
	l.out = append(l.out, content...)
	l.mutex.Unlock()
	l.awaken()
}

// Flush writes what is queued: what has come together while the last write was under way goes as one.
func (l *Link) Flush() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mutex.Lock()
	out := l.out
	l.out = l.spare[:0]
	l.mutex.Unlock()
	_, err := l.conn.Write(out)
	l.mutex.Lock()
	l.spare = out[:0]
	l.mutex.Unlock()
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
	for {
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return err
		}
		kind, number := head[4], binary.BigEndian.Uint64(head[5:])
		content := make([]byte, binary.BigEndian.Uint32(head[:])-(headBytes-4))
		if _, err := io.ReadFull(reader, content); err != nil {
			return err
		}
		switch kind {
		case serve:
			l.OnServe()
		case stop:
			l.OnStop()
		case answer, failure:
			l.mutex.Lock()
			done, is := l.waiting[number]
			delete(l.waiting, number)
			l.mutex.Unlock()
			if is { // else its caller has left
				done <- outcome{kind, content}
			}
		case call:
			l.begin(number, content)
		case leave:
			l.mutex.Lock()
			end, is := l.making[number]
			l.mutex.Unlock()
			if is {
				end()
			}
		case drop:
			grace, target := splitTime(content)
			l.calls.Drop(string(target), grace)
		default:
			return fmt.Errorf("a frame of kind %d: is the proxy of the same version as its server?", kind)
		}
	}
}

// begin makes a call of its own.
func (l *Link) begin(number uint64, content []byte) {
	timeout, content := splitTime(content)
	target, content := splitText(content)
	method, request := splitText(content)
	ctx, end := context.WithTimeout(context.Background(), timeout)
	l.mutex.Lock()
	l.making[number] = end
	l.mutex.Unlock()
	go func() {
		defer end()
		kind := byte(called)
		data, err := l.calls.Make(ctx, target, method, request)
		if err != nil {
			kind = callFailed
			data, _ = proto.Marshal(status.Convert(err).Proto())
		}
		l.mutex.Lock()
		delete(l.making, number)
		l.mutex.Unlock()
		l.Send(kind, number, data)
	}()
}

func splitTime(content []byte) (time.Duration, []byte) {
	return time.Duration(binary.BigEndian.Uint32(content)) * time.Millisecond, content[4:]
}

func splitText(content []byte) (string, []byte) {
	end := 1 + int(content[0])
	return string(content[1:end]), content[end:]
}

func statusIn(content []byte) error {
	found := &spb.Status{}
	if err := proto.Unmarshal(content, found); err != nil {
		return status.Error(codes.Internal, "unreadable status")
	}
	return status.ErrorProto(found)
}
