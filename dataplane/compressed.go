package main

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"
)

// How many messages are decompressed at once: each takes some 45 KiB beside its bytes.
const maxInflaters = 4

// errLargeInflated says that a message has more bytes than it may, once it is decompressed.
var errLargeInflated = errors.New("too large")

// compression is a way of making messages smaller.
type compression struct {
	name string
	open func(io.Reader) (io.ReadCloser, error)
}

// What callers may use: as grpcio has it, which serves where there is no proxy. Answers are not compressed.
var compressions = []compression{
	{"gzip", func(from io.Reader) (io.ReadCloser, error) {
		made, err := gzip.NewReader(from)
		if err == nil {
			made.Multistream(false) // what follows isn't the message's
		}
		return made, err
	}},
	{"deflate", zlib.NewReader},
}

func init() { // as gRPC has it: calls with other encodings it refuses by itself
	for _, each := range compressions {
		encoding.RegisterCompressor(each)
	}
}

// Name see encoding.Compressor.
func (c compression) Name() string { return c.name }

// Compress see encoding.Compressor.
func (c compression) Compress(io.Writer) (io.WriteCloser, error) {
	return nil, errors.New("messages of the proxy are not compressed")
}

// Decompress see encoding.Compressor. gRPC has answers of other servers decompressed so, if they are, and bounds them.
func (c compression) Decompress(from io.Reader) (io.Reader, error) { return c.open(from) }

// inflated returns the first bytes of a message, so many at most, and how many it has in all: no more than `most`, else
// the error is errLargeInflated.
func (c compression) inflated(data []byte, first, most int) ([]byte, int, error) {
	if len(data) == 0 {
		return nil, 0, nil // gRPC takes it for an empty message
	}
	from := bytes.NewReader(data) // no more of it is read than is needed
	reader, err := c.open(from)
	if err != nil {
		return nil, 0, err
	}
	var begin bytes.Buffer
	if _, err := io.CopyN(&begin, reader, int64(min(first, most+1))); err != nil && err != io.EOF {
		return nil, 0, err
	}
	rest, err := io.CopyN(io.Discard, reader, int64(max(0, most+1-begin.Len())))
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	size := begin.Len() + int(rest)
	if size > most {
		return nil, 0, errLargeInflated
	}
	if err := reader.Close(); err != nil {
		return nil, 0, err
	}
	if from.Len() > 0 {
		return nil, 0, errors.New("there is more behind its end")
	}
	return begin.Bytes(), size, nil
}

// compressionOf returns how the compressed messages of a call are to be read; nil if it says nothing of it.
func compressionOf(name string) *compression {
	for i := range compressions {
		if compressions[i].name == name {
			return &compressions[i]
		}
	}
	return nil
}

// inflate returns the message that came compressed, whose bytes count as those of one that came as it is. `room`: what a
// large one has; it is left.
func (i *incoming) inflate(data []byte, room *room) (*request, error) {
	defer func() { room.leave() }()
	found, size, err := i.inflated(data, smallBytes, i.most)
	if err != nil {
		return nil, err
	}
	if size <= smallBytes {
		return &request{data: found}, holdingIn(i.ctx).receive(size)
	}
	if room == nil {
		if room, err = i.take(i.ctx, size); err != nil {
			return nil, err
		}
	}
	if found, _, err = i.inflated(data, size, size); err != nil {
		return nil, err
	}
	return &request{data: found, leave: sync.OnceFunc(room.part(size).leave)}, nil
}

// inflated see compression.inflated. The error is a status.
func (i *incoming) inflated(data []byte, first, most int) ([]byte, int, error) {
	select {
	case i.inflaters <- struct{}{}:
		defer func() { <-i.inflaters }()
	case <-i.ctx.Done():
		return nil, 0, status.FromContextError(i.ctx.Err()).Err()
	}
	found, size, err := i.compression.inflated(data, first, most)
	if err == errLargeInflated {
		err = status.Errorf(codes.ResourceExhausted, "received message larger than max (decompressed, more than %d)", most)
	} else if err != nil {
		err = status.Errorf(codes.Internal, "the message can't be decompressed as %s: %v", i.compression.name, err)
	}
	return found, size, err
}
