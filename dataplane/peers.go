package main

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/files"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
	"statehouse-dataplane/orders"
)

const (
	readFile = "/statehouse.v1.PeerService/ReadFile"
	// How many files are read by other nodes at the same time; further ones wait.
	mostGiven = 8
	// What a call may have of a file in memory: what was read last, and what waits to be written.
	bytesOfGiven = 2 << 20
	// The fields of ReadFileResponse.
	dataField, checksumField = 1, 2
	// What may be on the way of a file, and of all files of a connection: by gRPC's default a file would come in pieces of
	// 64 KiB, and the sender wait after each.
	windowOfFile  = 1 << 20
	windowOfFiles = 4 << 20
	readOfFiles   = 256 << 10
	mostOfAnswer  = 4 << 20
)

// How long a receiver may take nothing of a file: its disk may stall, but it has a place. A variable for tests.
var takenWithin = 30 * time.Second

// Giving has other nodes read files of stores that are held here, and passes on all else. The server judges each call, as it
// judges others, and says which file it is about; it never sees the bytes.
func Giving(
	upstream *grpc.ClientConn, requests *Requests, held *orders.Orders, maxMessageBytes int, forward grpc.StreamHandler,
) grpc.StreamHandler {
	places := make(chan struct{}, mostGiven)
	return func(service any, caller grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(caller); method != readFile || !held.HasBegun() {
			return forward(service, caller)
		}
		ctx := caller.Context()
		messages, err := requests.Of(caller)
		if err != nil {
			return err
		}
		grant, err := granted(ctx, upstream, messages)
		if err == io.EOF {
			return forward(service, caller) // there is no request, which the server refuses
		} else if err != nil {
			return err
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		if !holdingIn(ctx).reserve(bytesOfGiven) {
			return errTooMuch
		}
		send := func(field protowire.Number, content mem.Buffer) error {
			head := protowire.AppendTag(nil, field, protowire.BytesType)
			head = protowire.AppendVarint(head, uint64(content.Len()))
			late := untaken(messages.stream)
			defer late.Stop()
			return caller.SendMsg(mem.BufferSlice{mem.SliceBuffer(head), content})
		}
		checksum, err := files.Send(ctx, grant.Path, grant.Offset, maxMessageBytes-mostOfHead, held.Limit(), func(piece mem.Buffer) error {
			return send(dataField, piece)
		})
		if err == nil {
			err = send(checksumField, mem.SliceBuffer(checksum))
		}
		if _, isStatus := status.FromError(err); err == nil || isStatus {
			return err
		}
		return status.Error(codes.Unavailable, err.Error())
	}
}

// untaken ends a call after a time, unless the timer is stopped.
func untaken(stream transportStream) *time.Timer {
	return time.AfterFunc(takenWithin, func() {
		stream.WriteStatus(status.Newf(codes.Aborted, "nothing of the file was taken for %v", takenWithin))
	})
}

// granted returns what the server lets a caller read, and io.EOF if there is no request.
func granted(ctx context.Context, upstream *grpc.ClientConn, messages *incoming) (*controlv1.FileGrant, error) {
	passedOn, err := metadataFor(ctx)
	if err != nil {
		return nil, err
	}
	request, err := messages.Only(maxSingleBytes)
	if err != nil {
		return nil, err
	}
	defer request.free()
	var answer message
	if err := upstream.Invoke(metadata.NewOutgoingContext(ctx, passedOn), readFile, &message{data: request.data}, &answer); err != nil {
		return nil, err
	}
	var response statehousev1.ReadFileResponse
	var grant controlv1.FileGrant
	if err := proto.Unmarshal(answer.data, &response); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := proto.Unmarshal(response.Data, &grant); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &grant, nil
}

// Fetches reads files of other nodes, over connections of their own: lookups don't wait for them.
type Fetches struct{ calls *Calls }

// NewFetches returns one that has its calls encrypted, or not, as all calls to other servers are.
func NewFetches(transport credentials.TransportCredentials, with *Files) *Fetches {
	return &Fetches{NewCalls(mostOfAnswer, transport, with,
		grpc.WithInitialWindowSize(windowOfFile),
		grpc.WithInitialConnWindowSize(windowOfFiles),
		grpc.WithReadBufferSize(readOfFiles),
	)}
}

var fileStream = &grpc.StreamDesc{ServerStreams: true}

// Read asks another node for a file, with a serialized ReadFileRequest.
func (f *Fetches) Read(ctx context.Context, address string, request []byte) (files.Stream, error) {
	conn, err := f.calls.begin(address)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := func() {
		stop()
		f.calls.end(conn)
	}
	stream, err := conn.NewStream(ctx, fileStream, readFile, grpc.ForceCodecV2(partsCodec{}))
	if err == nil {
		err = stream.SendMsg(mem.BufferSlice{mem.SliceBuffer(request)})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		ended()
		return nil, err
	}
	return &fetched{stream: stream, ended: ended}, nil
}

// partsCodec leaves messages in the parts in which they arrive.
type partsCodec struct{ rawCodec }

// Unmarshal has the receiver free the parts.
func (partsCodec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}

// fetched is a file as it arrives.
type fetched struct {
	stream   grpc.ClientStream
	ended    func()
	checksum []byte
}

// Close ends the call.
func (f *fetched) Close() { f.ended() }

// Checksum returns the file's, nil if it hasn't arrived.
func (f *fetched) Checksum() []byte { return f.checksum }

// Receive has `take` see the next bytes of the file, or none if its checksum comes.
func (f *fetched) Receive(take func([]byte) error) error {
	var parts mem.BufferSlice
	if err := f.stream.RecvMsg(&parts); err != nil {
		return err
	}
	defer parts.Free()
	field, skipped, err := headOf(parts)
	if err != nil {
		return err
	}
	if field == checksumField {
		f.checksum = parts.Materialize()[skipped:]
		return nil
	}
	for _, each := range parts {
		data := each.ReadOnlyData()
		part := data[min(skipped, len(data)):]
		skipped -= len(data) - len(part)
		if err := take(part); err != nil {
			return err
		}
	}
	return nil
}

// mostOfHead is what a field's tag and length take.
const mostOfHead = 1 + 10

var errNoPart = status.Error(codes.Internal, "a part of a file can't be read")

// headOf returns which field a serialized ReadFileResponse has, and how many bytes stand before its content.
func headOf(parts mem.BufferSlice) (protowire.Number, int, error) {
	if parts.Len() == 0 {
		return dataField, 0, nil
	}
	head := make([]byte, 0, mostOfHead)
	for _, each := range parts {
		data := each.ReadOnlyData()
		head = append(head, data[:min(len(data), mostOfHead-len(head))]...)
	}
	number, kind, tagBytes := protowire.ConsumeTag(head)
	if tagBytes < 0 || number != dataField && number != checksumField || kind != protowire.BytesType {
		return 0, 0, errNoPart
	}
	length, lengthBytes := protowire.ConsumeVarint(head[tagBytes:])
	if lengthBytes < 0 || uint64(parts.Len()-tagBytes-lengthBytes) != length {
		return 0, 0, errNoPart
	}
	return number, tagBytes + lengthBytes, nil
}
