package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/orders"
)

// mostOfFrame is as much as a frame of a test may say that it has: so much memory is taken before it comes.
const mostOfFrame = 1 << 20

// received is a connection from which these bytes come.
type received struct {
	net.Conn
	io.Reader
}

func (r *received) Read(to []byte) (int, error)    { return r.Reader.Read(to) }
func (r *received) Write(data []byte) (int, error) { return len(data), nil }

func frameOf(kind byte, number uint64, content []byte) []byte {
	data := binary.BigEndian.AppendUint32(nil, uint32(headBytes-4+len(content)))
	return append(binary.BigEndian.AppendUint64(append(data, kind), number), content...)
}

// hasLarge says whether a stream has a frame of more than tests have room for.
func hasLarge(data []byte) bool {
	for len(data) >= 4 {
		size := uint64(binary.BigEndian.Uint32(data))
		if size > mostOfFrame {
			return true
		}
		data = data[min(uint64(len(data)), 4+size):]
	}
	return false
}

// FuzzFramesAreTakenOrRefused has a node's and a router's part of the program take what comes on the link. Whatever that is, it
// is carried out, or ends the link with an error.
func FuzzFramesAreTakenOrRefused(f *testing.F) {
	serving, _ := proto.Marshal(&controlv1.ServingSnapshot{
		Number: 1, Stores: []*controlv1.ServingStore{{Name: "s", PartitionCount: 1, Replicas: []*controlv1.ServingReplica{{Store: 1}}}},
	})
	told, _ := proto.Marshal(&controlv1.ServingFacts{
		Ends: []*controlv1.ServingEnd{{Store: 1, Offset: 5}}, Reports: []*controlv1.ServingReport{{Store: "s"}},
	})
	given, _ := proto.Marshal(&controlv1.ServingPermit{Caller: 1, Call: get, Store: "s"})
	ordered, _ := proto.Marshal(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_Count{Count: &controlv1.EngineCount{Store: 1}}})
	toBeMade := []byte("\x00\x00\x00\x01\x05h:123\x02/m" + "request")
	for _, each := range [][]byte{
		frameOf(answer, 1, []byte("x")), frameOf(failure, 1, []byte{8, 5}), frameOf(call, 3, toBeMade), frameOf(call, 3, toBeMade[:7]),
		frameOf(leave, 3, nil), frameOf(drop, 0, []byte("\x00\x00\x00\x01h:123")), frameOf(drop, 0, []byte{1}),
		frameOf(routes, 0, []byte("\x08\x01\x22\x03\x0a\x01s")), frameOf(alive, 1, nil), frameOf(order, 1, ordered), frameOf(order, 1, []byte{1}),
		append(frameOf(mayServe, 0, serving), frameOf(holds, 1, []byte("\x00\x00\x00\x00\x00\x00\x00\x09"))...),
		frameOf(holds, 1, []byte{1}), frameOf(facts, 0, told), frameOf(permit, 0, given), frameOf(withdraw, 0, nil), frameOf(stop, 0, nil),
		frameOf(99, 0, nil), {0, 0, 0, 1, answer, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 0},
	} {
		f.Add(each)
		f.Add(each[:len(each)-1])
	}
	log.SetOutput(io.Discard)
	f.Cleanup(func() { log.SetOutput(os.Stderr) })
	f.Fuzz(func(t *testing.T, data []byte) {
		if hasLarge(data) {
			return
		}
		calls := NewCalls(1<<20, insecure.NewCredentials(), nil)
		calls.options = append(calls.options, grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("nobody is called in a test")
		}))
		conn := &received{Reader: io.MultiReader(bytes.NewReader(frameOf(serveCalls, 0, []byte{linkVersion})), bytes.NewReader(data))}
		link := NewLink(conn, calls)
		link.OnServe, link.OnStop = func() {}, func() {}
		held := orders.New(func(*controlv1.EngineReport) {}, nil)
		defer held.Close()
		allowed := permitted(link)
		ofHeld(held, link, 1<<20, allowed)
		NewExpress(link, calls, 1<<20, allowed)
		// What an order says is done to files. Here it is only read.
		link.OnOrder = func(_ uint64, content []byte) { _ = proto.Unmarshal(content, &controlv1.EngineOrder{}) }
		if err := link.receive(); err == nil {
			t.Fatal("it goes on without anything more to read")
		}
		calls.mutex.Lock()
		defer calls.mutex.Unlock()
		for _, each := range calls.conns {
			_ = each.Close()
		}
	})
}
