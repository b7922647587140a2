package main

import (
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// store is the data of a test's server, and what is wrong with it.
type store struct {
	keys       uint32
	partitions int
	// Entries per page; 0: as many as the request asks for.
	pageMax int
	// Called before each request; an error is the answer.
	before func() error
	// Changes the answer for a key.
	spoil func(key uint32, value []byte) (said []byte, found bool)
}

func (s *store) get(key uint32) ([]byte, bool) {
	if key >= s.keys {
		return nil, false
	}
	value := appendValue(nil, key, 0)
	if s.spoil == nil {
		return value, true
	}
	return s.spoil(key, value)
}

// serve starts a gRPC server with both contracts; it ends with the test.
func serve(t *testing.T, s *store, options ...grpc.ServerOption) (address string, server *grpc.Server) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return socket.Addr().String(), serveOn(t, socket, s, options...)
}

func serveOn(t *testing.T, socket net.Listener, s *store, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(s.handle))...)
	go server.Serve(socket)
	t.Cleanup(server.Stop)
	return server
}

// bytesCodec leaves messages as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (bytesCodec) Unmarshal(content []byte, message any) error {
	*message.(*[]byte) = append([]byte{}, content...)
	return nil
}

func (bytesCodec) Name() string { return "proto" }

func (s *store) handle(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if s.before != nil {
		if err := s.before(); err != nil {
			return err
		}
	}
	path, _ := grpc.MethodFromServerStream(stream)
	service, method, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	answers := map[string]map[string]func(grpc.ServerStream, []byte) error{
		"statehouse.v1.QueryService": {"Get": s.ourGet, "BatchGet": s.ourBatchGet, "Scan": s.ourScan},
		"bench.peer.PeerService":     {"Get": s.peerGet, "BatchGet": s.peerBatchGet, "Scan": s.peerScan},
	}
	answer, isKnown := answers[service][method]
	if !isKnown {
		return status.Error(codes.Unimplemented, path)
	}
	return answer(stream, request)
}

func (s *store) ourAnswer(request []byte) []byte {
	var answer []byte
	for asked := fieldsOf(request); asked.next(); {
		if asked.number != 2 {
			continue
		}
		key := fieldsOf(asked.content)
		key.next()
		number, _ := keyNumber(key.content)
		value, found := s.get(number)
		if !found {
			return appendNumber(nil, 1, 0)
		}
		answer = appendString(appendNumber(nil, 1, 1), 2, appendString(nil, 2, value))
	}
	return appendString(answer, 3, appendNumber(nil, 1, 0))
}

func (s *store) ourGet(stream grpc.ServerStream, request []byte) error {
	return stream.SendMsg(s.ourAnswer(request))
}

func (s *store) ourBatchGet(stream grpc.ServerStream, request []byte) error {
	var answer []byte
	for asked := fieldsOf(request); asked.next(); {
		answer = appendString(answer, 1, appendString(nil, 1, s.ourAnswer(asked.content)))
	}
	return stream.SendMsg(answer)
}

func (s *store) ourScan(stream grpc.ServerStream, request []byte) error {
	var from, to uint32
	size, partition := uint64(0), -1
	for asked := fieldsOf(request); asked.next(); {
		key := fieldsOf(asked.content)
		switch asked.number {
		case 2:
			key.next()
			from, _ = keyNumber(key.content)
		case 3:
			key.next()
			to, _ = keyNumber(key.content)
		case 6:
			size = asked.varint
		case 7:
			from, _ = keyNumber(asked.content)
		case 10:
			partition = int(asked.varint)
		}
	}
	if s.pageMax > 0 {
		size = uint64(s.pageMax)
	}
	var answer []byte
	for key := from; key <= to; key++ {
		text := appendKey(nil, key)
		if partition >= 0 && partitionOf(text, s.partitions) != partition {
			continue
		}
		if size == 0 {
			return stream.SendMsg(appendString(answer, 2, text))
		}
		size--
		if value, found := s.get(key); found {
			entry := appendString(nil, 1, appendString(nil, 1, text))
			entry = appendString(entry, 2, appendString(nil, 5, value))
			answer = appendString(answer, 1, entry)
		}
	}
	return stream.SendMsg(answer)
}

func (s *store) peerAnswer(text []byte) []byte {
	key, _ := keyNumber(text)
	value, found := s.get(key)
	if !found {
		return nil
	}
	return appendString(appendNumber(nil, 1, 1), 2, value)
}

func (s *store) peerGet(stream grpc.ServerStream, request []byte) error {
	asked := fieldsOf(request)
	asked.next()
	return stream.SendMsg(s.peerAnswer(asked.content))
}

func (s *store) peerBatchGet(stream grpc.ServerStream, request []byte) error {
	var answer []byte
	for asked := fieldsOf(request); asked.next(); {
		if asked.number == 1 {
			answer = appendString(answer, 1, s.peerAnswer(asked.content))
		}
	}
	return stream.SendMsg(answer)
}

func (s *store) peerScan(stream grpc.ServerStream, request []byte) error {
	asked := fieldsOf(request)
	asked.next()
	from, _ := keyNumber(asked.content)
	asked.next()
	to, _ := keyNumber(asked.content)
	for key := from; key <= to; key++ {
		value, found := s.get(key)
		if !found {
			continue
		}
		entry := appendString(appendString(nil, 1, appendKey(nil, key)), 2, value)
		if err := stream.SendMsg(appendString(nil, 1, entry)); err != nil {
			return err
		}
	}
	return nil
}
