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
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// Larger messages wait for room. Smaller ones are within what a call may send before anybody reads it.
	smallBytes = 64 << 10
	// What the sender of a large message may send ahead: it may come in frames that take far more memory than they hold.
	// And what goes to the server in one piece.
	pieceBytes = 256 << 10
)

// How long a large message may wait for room, and how long it may take to arrive. A variable for tests.
var arrivesWithin = 30 * time.Second

// Requests receives messages of callers. It holds so many bytes of large ones at a time; further ones are not read yet,
// so that HTTP/2's flow control stops their senders.
type Requests struct {
	largest   int
	held      int
	room      *semaphore.Weighted
	inflaters chan struct{}
}

// NewRequests returns one that takes messages of so many bytes, and holds so many of large ones, at least one.
func NewRequests(largest, held int) *Requests {
	held = max(largest, held)
	return &Requests{largest, held, semaphore.NewWeighted(int64(held)), make(chan struct{}, maxInflaters)}
}

// room is what a large message has of it. A small one has none, which is nil.
type room struct {
	all   *semaphore.Weighted
	bytes int
}

// leave gives back what it still has.
func (r *room) leave() {
	if r != nil {
		r.all.Release(int64(r.bytes))
		r.bytes = 0
	}
}

// part returns so many bytes of it, which are left by themselves.
func (r *room) part(bytes int) *room {
	r.bytes -= bytes
	return &room{r.all, bytes}
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
	RecvCompress() string
	SetSendCompress(name string) error
}

// incoming is the messages of a call, which are read by one at a time.
type incoming struct {
	*Requests
	ctx    context.Context
	stream transportStream
	// How those are to be read that are compressed; nil if the call doesn't say.
	compression *compression
	header      [5]byte
	most        int // bytes of the one that was announced, decompressed
}

// Of: the messages of a call.
func (q *Requests) Of(caller grpc.ServerStream) (*incoming, error) {
	ctx := caller.Context()
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream)
	if !ok {
		return nil, status.Error(codes.Internal, "this version of gRPC shows no messages' lengths")
	}
	found := &incoming{Requests: q, ctx: ctx, stream: stream}
	if name := stream.RecvCompress(); name != "" && name != encoding.Identity {
		found.compression = compressionOf(name)
		// gRPC would compress the answers alike.
		if err := stream.SetSendCompress(encoding.Identity); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return found, nil
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

// tell has the caller learn of an error, as gRPC does it, while others read the call's messages.
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
	i.most = min(most, i.largest)
	size := binary.BigEndian.Uint32(i.header[1:])
	switch {
	case i.header[0] > 1:
		return 0, status.Error(codes.Internal, "a message begins with an unknown flag")
	case i.isCompressed() && i.compression == nil:
		return 0, status.Error(codes.Internal, "a message is compressed, and the call has no grpc-encoding that says how")
	case int64(size) > int64(i.most):
		return 0, status.Errorf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", size, i.most)
	}
	// No more than this of a large one comes before there is room for it.
	return int(size), holdingIn(i.ctx).receive(min(int(size), smallBytes))
}

// isCompressed returns whether the message is that was announced.
func (i *incoming) isCompressed() bool { return i.header[0] == 1 }

func (i *incoming) rest(size int, late *time.Timer) (*request, error) {
	if size > smallBytes {
		late.Stop() // it has times of its own
		return i.large(size)
	}
	found, err := i.stream.Read(size)
	if err != nil {
		return nil, cut(err)
	}
	data := found.Materialize()
	found.Free()
	if i.isCompressed() {
		return i.inflate(data, nil)
	}
	return &request{data: data}, nil
}

func (i *incoming) large(size int) (*request, error) {
	bytes := size
	if i.isCompressed() { // to wait for more later, with some taken, could be for ever
		bytes = min(size+i.most, i.held)
	}
	room, err := i.take(i.ctx, bytes)
	if err != nil {
		return nil, err
	}
	data, err := arrive(i.stream, size)
	switch {
	case err != nil:
		room.leave()
		return nil, err
	case i.isCompressed():
		return i.inflate(data, room)
	default:
		return &request{data: data, leave: sync.OnceFunc(room.leave)}, nil
	}
}

// take waits for room for so many bytes.
func (q *Requests) take(ctx context.Context, bytes int) (*room, error) {
	waiting, end := context.WithTimeout(ctx, arrivesWithin)
	defer end()
	if err := q.room.Acquire(waiting, int64(bytes)); err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, status.Error(codes.ResourceExhausted, "there is no room for a large request: others are being received")
	}
	return &room{q.room, bytes}, nil
}

// arrive returns a large message when all of it has come.
func arrive(stream transportStream, size int) ([]byte, error) {
	// Who announces a message and sends none must not keep others out.
	late := tooLate(stream)
	defer late.Stop()
	data := make([]byte, 0, size)
	for len(data) < size {
		piece, err := stream.Read(min(pieceBytes, size-len(data)))
		if err != nil {
			return nil, cut(err)
		}
		for _, each := range piece {
			data = append(data, each.ReadOnlyData()...)
		}
		piece.Free()
	}
	return data, nil
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
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}
