package main

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// Larger messages wait for room. Smaller ones are within what a call may send before anybody reads it.
	smallBytes = 64 << 10
	// Of a large message, what its sender may send ahead: it may come in frames that take far more memory than they hold.
	// And what goes to the server at once.
	pieceBytes = 256 << 10
)

// How long a large message may wait for room, and how long it may take to arrive. A variable for tests.
var arrivesWithin = 30 * time.Second

// Requests receives messages of callers. Of the large ones it holds so many bytes at once; further ones are not read yet,
// so that HTTP/2's flow control stops their senders.
type Requests struct {
	largest int
	room    *semaphore.Weighted
}

// NewRequests returns one that takes messages of so many bytes, and holds so many of large ones, at least one.
func NewRequests(largest, held int) *Requests {
	return &Requests{largest, semaphore.NewWeighted(int64(max(largest, held)))}
}

// request is a message that has arrived.
type request struct {
	data []byte
	// Set for a large one.
	leave func()
	// Set for a huge one that waits to be written on the link, and closed then.
	written chan struct{}
}

func (r *request) isLarge() bool { return r.leave != nil }

// free is called when a message has been passed on.
func (r *request) free() {
	r.data = nil
	if r.isLarge() {
		r.leave()
	}
}

// transportStream is the part of gRPC's stream below a call that says how long a message is before it is there.
type transportStream interface {
	ReadMessageHeader(header []byte) error
	Read(bytes int) (mem.BufferSlice, error)
	WriteStatus(*status.Status) error
}

// incoming is the messages of a call, which are read by one at a time.
type incoming struct {
	*Requests
	ctx    context.Context
	stream transportStream
	header [5]byte
}

// Of returns the messages of a call.
func (q *Requests) Of(caller grpc.ServerStream) (*incoming, error) {
	ctx := caller.Context()
	stream, is := grpc.ServerTransportStreamFromContext(ctx).(transportStream)
	if !is {
		return nil, status.Error(codes.Internal, "this version of gRPC shows no messages' lengths")
	}
	return &incoming{Requests: q, ctx: ctx, stream: stream}, nil
}

// Only returns the only message of a call, and io.EOF if there is none. It is to be freed, and has at most so many bytes.
// A call whose message doesn't come in time is ended: it holds a place.
func (i *incoming) Only(most int) (*request, error) {
	late := tooLate(i.stream)
	defer late.Stop()
	size, err := i.announced(most)
	if err != nil {
		return nil, i.tell(err)
	}
	found, err := i.rest(size, late)
	if err != nil || found.isLarge() {
		return found, i.tell(err)
	}
	// What follows would lie there, and count nowhere, until the call is answered.
	if err := i.next(); err == nil {
		return nil, i.tell(status.Error(codes.Unimplemented, "a lookup is one message"))
	} else if err != io.EOF {
		return nil, i.tell(err)
	}
	return found, nil
}

// Announced returns the length of the next message of a call, and io.EOF after the last one. The first one is to come in
// time; a further one may be long in coming: its call is under way.
func (i *incoming) Announced(isFirst bool) (int, error) {
	if isFirst {
		late := tooLate(i.stream)
		defer late.Stop()
	}
	size, err := i.announced(i.largest)
	return size, i.tell(err)
}

// Rest returns the message that was announced. It is to be freed.
func (i *incoming) Rest(size int) (*request, error) {
	late := tooLate(i.stream)
	defer late.Stop()
	found, err := i.rest(size, late)
	return found, i.tell(err)
}

// tell has the caller learn of an error, as gRPC does it, whoever reads the call's messages.
func (i *incoming) tell(err error) error {
	if err != nil && err != io.EOF {
		i.stream.WriteStatus(status.Convert(err))
	}
	return err
}

// next reads the header of the next message.
func (i *incoming) next() error {
	err := i.stream.ReadMessageHeader(i.header[:])
	if err != nil && err != io.EOF {
		return cut(err)
	}
	return err
}

func (i *incoming) announced(most int) (int, error) {
	if err := i.next(); err != nil {
		return 0, err
	}
	most = min(most, i.largest)
	size := binary.BigEndian.Uint32(i.header[1:])
	if i.header[0] != 0 {
		return 0, status.Error(codes.Unimplemented, "compressed messages are not taken")
	}
	if int64(size) > int64(most) {
		return 0, status.Errorf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", size, most)
	}
	// Of a large one no more than this comes before there is room for it.
	return int(size), holdingIn(i.ctx).receive(min(int(size), smallBytes))
}

func (i *incoming) rest(size int, late *time.Timer) (*request, error) {
	if size > smallBytes {
		late.Stop() // it has times of its own
		return i.large(i.ctx, i.stream, size)
	}
	found, err := i.stream.Read(size)
	if err != nil {
		return nil, cut(err)
	}
	defer found.Free()
	return &request{data: found.Materialize()}, nil
}

func (q *Requests) large(ctx context.Context, stream transportStream, size int) (*request, error) {
	waiting, end := context.WithTimeout(ctx, arrivesWithin)
	defer end()
	if err := q.room.Acquire(waiting, int64(size)); err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, status.Error(codes.ResourceExhausted, "there is no room for a large request: others are being received")
	}
	found := &request{leave: sync.OnceFunc(func() { q.room.Release(int64(size)) })}
	// Who announces a message and sends none must not keep others out.
	late := tooLate(stream)
	defer late.Stop()
	found.data = make([]byte, 0, size)
	for len(found.data) < size {
		piece, err := stream.Read(min(pieceBytes, size-len(found.data)))
		if err != nil {
			found.free()
			return nil, cut(err)
		}
		for _, each := range piece {
			found.data = append(found.data, each.ReadOnlyData()...)
		}
		piece.Free()
	}
	return found, nil
}

// tooLate ends a call after a time, unless the timer is stopped.
func tooLate(stream transportStream) *time.Timer {
	return time.AfterFunc(arrivesWithin, func() {
		stream.WriteStatus(status.New(codes.ResourceExhausted, "the request took too long to arrive"))
	})
}

// cut returns what gRPC makes of an error within a message.
func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
	}
	if _, is := status.FromError(err); is {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}
