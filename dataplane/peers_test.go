package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/files"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
	"statehouse-dataplane/orders"
)

// judging is a server behind a proxy, which lets a file be read, or refuses.
func judging(t testing.TB, path string, refusal error) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, call grpc.ServerStream) error {
		var request message
		if err := call.RecvMsg(&request); err != nil {
			return err
		}
		var asked statehousev1.ReadFileRequest
		if err := proto.Unmarshal(request.data, &asked); err != nil {
			return err
		}
		if refusal != nil {
			return refusal
		}
		grant := serialized(&controlv1.FileGrant{Path: path, Offset: asked.Offset})
		return call.SendMsg(&message{data: serialized(&statehousev1.ReadFileResponse{Data: grant})})
	}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), messages(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// giver is a proxy that gives files to others; it returns its address.
func giver(t testing.TB, behind *grpc.ClientConn, maxMessageBytes int) (string, *Quotas) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	held := orders.New(func(*controlv1.EngineReport) {}, nil)
	start := &controlv1.EngineStart{Bootstrap: []string{"127.0.0.1:1"}, BlockCacheBytes: 1 << 20, WriteBufferBytes: 1 << 20}
	if answer := held.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_Start{Start: start}}); answer.Fault != nil {
		t.Fatal(answer.Fault)
	}
	t.Cleanup(held.Close)
	quotas := NewQuotas(quotaBytes)
	elsewhere := func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "forwarded") }
	handler := Giving(behind, NewRequests(maxMessageBytes, 1<<20), held, maxMessageBytes, elsewhere)
	how := append(serving(options{maxMessageBytes: maxMessageBytes}, quotas), grpc.UnknownServiceHandler(quotas.Handle(handler, func() {})))
	server := grpc.NewServer(how...)
	go func() { _ = server.Serve(NewBounded(listener, 100, 0, quotas)) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), quotas
}

func fetchesOf(address string) files.Open {
	reads := NewFetches(insecure.NewCredentials(), nil)
	return func(ctx context.Context, offset uint64) (files.Stream, error) {
		return reads.Read(ctx, address, serialized(&statehousev1.ReadFileRequest{Checkpoint: "c", File: "f", Offset: offset}))
	}
}

func TestAFileGoesFromOneProxyToAnother(t *testing.T) {
	random, content := rand.New(rand.NewPCG(3, 4)), make([]byte, 5<<20+17)
	for at := range content {
		content[at] = byte(random.Uint32())
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file := &statehousev1.StoredFile{Name: "f", Size: uint64(len(content)), ChangedNs: 1}
	for _, maxMessageBytes := range []int{64 << 10, 16 << 20} {
		address, quotas := giver(t, judging(t, path, nil), maxMessageBytes)
		directory := t.TempDir()
		// Some of it is there already.
		part := filepath.Join(directory, fmt.Sprintf("f.%d.1.part", len(content)))
		if err := os.WriteFile(part, content[:1<<20], 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := files.Fetch(context.Background(), fetchesOf(address), file, directory, 10*time.Second, files.NewLimit(0))
		if err != nil || found != 1<<20 {
			t.Fatal(found, err)
		}
		fetched, err := os.ReadFile(filepath.Join(directory, "f"))
		if err != nil || !bytes.Equal(fetched, content) {
			t.Fatal(len(fetched), err)
		}
		quotas.mutex.Lock()
		for _, each := range quotas.addresses {
			if each.taken > bytesOfGiven {
				t.Errorf("%d bytes are held", each.taken)
			}
		}
		quotas.mutex.Unlock()
	}
}

func TestWhoIsRefusedGetsNothing(t *testing.T) {
	refusal := status.Error(codes.PermissionDenied, "for nodes only")
	address, _ := giver(t, judging(t, "/etc/hostname", refusal), 1<<20)
	stream, err := fetchesOf(address)(context.Background(), 0)
	if err == nil {
		defer stream.Close()
		err = stream.Receive(func([]byte) error {
			t.Error("it got something")
			return nil
		})
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
}

func TestAFileThatIsGoneIsAFailure(t *testing.T) {
	address, _ := giver(t, judging(t, filepath.Join(t.TempDir(), "gone"), nil), 1<<20)
	stream, err := fetchesOf(address)(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := stream.Receive(func([]byte) error { return nil }); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

func TestReceiversThatTakeNothingKeepNobodyOut(t *testing.T) {
	was := takenWithin
	takenWithin = 200 * time.Millisecond
	t.Cleanup(func() { takenWithin = was })
	content := make([]byte, 4*windowOfFile)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	address, quotas := giver(t, judging(t, path, nil), 1<<20)
	stuck := make([]files.Stream, mostGiven)
	for at := range stuck {
		stream, err := fetchesOf(address)(context.Background(), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		// It has a place then.
		if err := stream.Receive(func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
		stuck[at] = stream
	}
	file := &statehousev1.StoredFile{Name: "f", Size: uint64(len(content)), ChangedNs: 1}
	if _, err := files.Fetch(context.Background(), fetchesOf(address), file, t.TempDir(), 10*time.Second, files.NewLimit(0)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "what the calls had to be given back", func() bool {
		quotas.mutex.Lock()
		defer quotas.mutex.Unlock()
		return quotas.taken == 0
	})
	// Each has what was on its way, and learns why there is no more.
	for _, stream := range stuck {
		var err error
		for err == nil {
			err = stream.Receive(func([]byte) error { return nil })
		}
		if status.Code(err) != codes.Aborted || status.Convert(err).Message() != "nothing of the file was taken for 200ms" {
			t.Fatal(err)
		}
	}
}

func TestPartsOfFilesAreReadWhereverTheyAreCut(t *testing.T) {
	content := make([]byte, 300)
	whole := serialized(&statehousev1.ReadFileResponse{Data: content})
	for cut := range whole {
		parts := mem.BufferSlice{mem.SliceBuffer(whole[:cut]), mem.SliceBuffer(whole[cut:])}
		if field, size, err := headOf(parts); err != nil || size != len(whole)-len(content) || field != dataField {
			t.Fatal(cut, field, size, err)
		}
	}
	last := serialized(&statehousev1.ReadFileResponse{Checksum: make([]byte, 8)})
	if field, size, err := headOf(mem.BufferSlice{mem.SliceBuffer(last)}); err != nil || size != 2 || field != checksumField {
		t.Fatal(field, size, err)
	}
	for _, wrong := range [][]byte{{1}, {0x0a}, {0x0a, 5, 1}, {0x1a, 1, 1}, {0x12, 2, 1}, whole[:200]} {
		if _, _, err := headOf(mem.BufferSlice{mem.SliceBuffer(wrong)}); err == nil {
			t.Fatal(wrong)
		}
	}
	if _, size, err := headOf(nil); size != 0 || err != nil {
		t.Fatal(size, err)
	}
}

func TestAnErrorOfTheReceiverComesBackAsItIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	address, _ := giver(t, judging(t, path, nil), 1<<20)
	stream, err := fetchesOf(address)(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	full := errors.New("the disk is full")
	if err := stream.Receive(func([]byte) error { return full }); !errors.Is(err, full) {
		t.Fatal(err)
	}
	// The checksum is left.
	if err := stream.Receive(func([]byte) error { return full }); err != nil || len(stream.Checksum()) != 8 {
		t.Fatal(err, stream.Checksum())
	}
	if err := stream.Receive(func([]byte) error { return nil }); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// A file goes from one proxy to another, both in this process: the figures have what both take of processors, too.
func BenchmarkAFileGoesFromOneProxyToAnother(b *testing.B) {
	const size = 256 << 20
	random, content := rand.New(rand.NewPCG(3, 4)), make([]byte, size)
	for at := 0; at < size; at += 8 {
		binary.LittleEndian.PutUint64(content[at:], random.Uint64())
	}
	path := filepath.Join(b.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		b.Fatal(err)
	}
	file := &statehousev1.StoredFile{Name: "f", Size: size, ChangedNs: 1}
	address, _ := giver(b, judging(b, path, nil), 16<<20)
	b.SetBytes(size)
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		directory := b.TempDir()
		if _, err := files.Fetch(context.Background(), fetchesOf(address), file, directory, time.Minute, files.NewLimit(0)); err != nil {
			b.Fatal(err)
		}
		_ = os.RemoveAll(directory)
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	used := time.Duration(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) / time.Duration(b.N)
	b.ReportMetric(used.Seconds()*float64(1<<30)/size, "processor-s/GB")
}
