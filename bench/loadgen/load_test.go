package main

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const testKeys = 1_000

// short returns options for a run of a fraction of a second against one server.
func short(method string, targets ...string) options {
	o := defaults()
	o.Method, o.Targets, o.Store, o.Keys = method, targets, "bench", testKeys
	o.Concurrency, o.DurationS, o.WarmupS, o.TimeoutMs = 8, 0.2, 0, 5_000
	return o
}

// runLoad runs a load to its end.
func runLoad(t *testing.T, o options) *report {
	t.Helper()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	made, err := newLoad(o).run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (r *report) count(t *testing.T, as outcome) int {
	t.Helper()
	return r.Requests.ByOutcome[as.String()]
}

func requirePassed(t *testing.T, made *report) {
	t.Helper()
	if !made.Passed || made.hasWrong() || made.Requests.OK == 0 {
		t.Fatalf("requests %v, lookups %v, errors %v", made.Requests, made.Lookups, made.Errors)
	}
}

func TestHonestServersPass(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: testKeys, partitions: 4})
	for _, kind := range []string{kindOurs, kindPeer} {
		for method, each := range map[string]int{methodGet: 1, methodBatchGet: 100, methodScan: 250} {
			for name, owners := range map[string][]int{"any": nil, "straight": {0, 0, 0, 0}} {
				t.Run(kind+" "+method+" "+name, func(t *testing.T) {
					t.Parallel()
					o := short(method, address)
					o.Kind, o.Owners, o.Partitions, o.Span = kind, owners, 4, 250
					made := runLoad(t, o)
					requirePassed(t, made)
					isPart := method == methodScan && kind == kindOurs && owners != nil
					if made.Lookups.OK != each*made.Requests.OK && !isPart {
						t.Fatalf("%d lookups of %d requests", made.Lookups.OK, made.Requests.OK)
					}
					latency := made.LatencyUs.OK
					histogram, err := hdrhistogram.Decode([]byte(latency.Histogram))
					if err != nil || histogram.TotalCount() != int64(made.Requests.OK) || histogram.Max() != latency.Max {
						t.Fatalf("%v %v", latency, err)
					}
				})
			}
		}
	}
}

func TestWrongValuesAreCaught(t *testing.T) {
	t.Parallel()
	lies := func(key uint32, value []byte) ([]byte, bool) {
		if key%5 == 0 {
			return appendValue(nil, key, 1), true
		}
		return value, true
	}
	requireCaught(t, lies, wrong)
}

func TestValuesGoOnOnlyIfThatWasSaid(t *testing.T) {
	t.Parallel()
	longer := append(appendValue(nil, 7, 0), "more"...)
	if plain := (&data{}); plain.isRight(7, longer) {
		t.Error("a value that goes on is taken")
	}
	tailed := data{tail: true}
	if !tailed.isRight(7, longer) || tailed.isRight(8, longer) {
		t.Error("what a value begins with decides")
	}
}

func TestMissingValuesAreCaught(t *testing.T) {
	t.Parallel()
	forgets := func(key uint32, value []byte) ([]byte, bool) { return value, key%5 != 0 }
	requireCaught(t, forgets, missing)
}

// requireCaught loads a server that spoils every fifth key.
func requireCaught(t *testing.T, spoil func(uint32, []byte) ([]byte, bool), as outcome) {
	address, _ := serve(t, &store{keys: testKeys, spoil: spoil})
	for _, kind := range []string{kindOurs, kindPeer} {
		for _, method := range []string{methodGet, methodBatchGet, methodScan} {
			t.Run(kind+" "+method, func(t *testing.T) {
				t.Parallel()
				o := short(method, address)
				o.Kind = kind
				made := runLoad(t, o)
				if made.Passed || !made.hasWrong() || made.count(t, as) == 0 || made.Lookups.ByOutcome[as.String()] == 0 {
					t.Fatalf("requests %v, lookups %v", made.Requests, made.Lookups)
				}
				if len(made.Errors) == 0 || made.Errors[0].Outcome != as.String() {
					t.Fatalf("%v", made.Errors)
				}
				if method != methodGet && made.Lookups.OK < 3*made.Lookups.Failed {
					t.Fatalf("lookups %v, and only each fifth is spoilt", made.Lookups)
				}
			})
		}
	}
}

func TestAnswersToNothingAreWrong(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: testKeys, before: func() error { return nil }})
	o := short(methodGet, address)
	// The peer's answers don't parse as ours, or have no value.
	l := newLoad(o)
	l.path = peer{}.path(methodGet)
	made, err := l.run(context.Background())
	if err != nil || made.Requests.OK > 0 || !made.hasWrong() {
		t.Fatalf("%v %v", made, err)
	}
}

func TestShedLoadIsCountedByStatus(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	sheds := func() error {
		if asked.Add(1)%4 == 0 {
			return status.Error(codes.ResourceExhausted, "too much: 100% busy")
		}
		return nil
	}
	address, _ := serve(t, &store{keys: testKeys, before: sheds})
	made := runLoad(t, short(methodGet, address))
	shed := made.Requests.ByOutcome["RESOURCE_EXHAUSTED"]
	if made.Passed || made.hasWrong() || shed == 0 || shed != made.Requests.Failed || made.Requests.OK == 0 {
		t.Fatalf("%v", made.Requests)
	}
	if made.Errors[0].Message != "too much: 100% busy" {
		t.Fatalf("%v", made.Errors)
	}
	if made.LatencyUs.Failed.Count != int64(shed) {
		t.Fatalf("%v", made.LatencyUs.Failed)
	}
}

// stalls returns a function that holds requests from 0.5 s to 1.5 s after the first request.
func stalls() func() error {
	var first atomic.Pointer[time.Time]
	return func() error {
		now := time.Now()
		first.CompareAndSwap(nil, &now)
		into := now.Sub(*first.Load())
		if into > 500*time.Millisecond && into < 1500*time.Millisecond {
			time.Sleep(1500*time.Millisecond - into)
		}
		return nil
	}
}

func TestStallShowsInAnOpenLoop(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: testKeys, before: stalls()})
	o := short(methodGet, address)
	o.Concurrency, o.Rate, o.DurationS, o.Partitions = 0, 200, 2.5, 2
	made := runLoad(t, o)
	requirePassed(t, made)
	// 200 of the 500 were due in that second, and waited half of it on average.
	if l := made.LatencyUs.OK; l.P90 < 500_000 || l.P99 < 900_000 || l.Max < 900_000 {
		t.Fatalf("%v", l)
	}
	if gap := made.LongestGap; gap.GapMs < 900 || gap.AtMs < 100 {
		t.Fatalf("%v", gap)
	}
	if gap := made.LongestPartitionGap; gap.GapMs < made.LongestGap.GapMs || *gap.Partition > 1 {
		t.Fatalf("%v", gap)
	}
	if slices.Max(made.Series.MaxUs) < 900_000 {
		t.Fatalf("%v", made.Series)
	}
}

// A closed loop sends nothing while it waits: the percentiles hide what the longest gap shows.
func TestStallShowsInAClosedLoopAsAGapOnly(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: testKeys, before: stalls()})
	o := short(methodGet, address)
	o.Concurrency, o.DurationS = 1, 2.5
	made := runLoad(t, o)
	requirePassed(t, made)
	if l := made.LatencyUs.OK; l.P90 > 500_000 || l.Max < 900_000 || made.LongestGap.GapMs < 900 {
		t.Fatalf("%v %v", l, made.LongestGap)
	}
}

func TestTimeoutsAreCancelled(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	cancelled := make(chan error, 1_000)
	hangs := func(_ any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if asked.Add(1)%3 != 0 {
			return handler(nil, stream)
		}
		// The server counts down the deadline as well, and may be first: it answers then as servers do.
		<-stream.Context().Done()
		cancelled <- stream.Context().Err()
		return status.FromContextError(stream.Context().Err()).Err()
	}
	address, _ := serve(t, &store{keys: testKeys}, grpc.StreamInterceptor(hangs))
	o := short(methodGet, address)
	o.TimeoutMs = 50
	made := runLoad(t, o)
	if late := made.count(t, timedOut) + made.Requests.ByOutcome["DEADLINE_EXCEEDED"]; late == 0 || made.Requests.OK == 0 {
		t.Fatalf("%v", made.Requests)
	}
	<-cancelled
}

func TestAsManyStreamsAsAreAllowed(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	counts := func() error {
		at := now.Add(1)
		for seen := most.Load(); at > seen && !most.CompareAndSwap(seen, at); seen = most.Load() {
		}
		time.Sleep(time.Millisecond)
		now.Add(-1)
		return nil
	}
	address, _ := serve(t, &store{keys: testKeys, before: counts}, grpc.MaxConcurrentStreams(3))
	o := short(methodGet, address)
	o.Concurrency = 20
	requirePassed(t, runLoad(t, o))
	if most.Load() > 3 {
		t.Fatalf("%d streams", most.Load())
	}
}

func TestLargeMessagesInSmallWindows(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: 100_000}, grpc.InitialWindowSize(65_535), grpc.InitialConnWindowSize(65_535))
	o := short(methodBatchGet, address)
	o.Batch = 1_000
	requirePassed(t, runLoad(t, o))
	// More than our window holds.
	o = short(methodScan, address)
	o.Kind, o.Keys, o.Span, o.Concurrency = kindPeer, 100_000, 90_000, 1
	requirePassed(t, runLoad(t, o))
}

func TestPagesAreFollowed(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: testKeys, pageMax: 7})
	made := runLoad(t, short(methodScan, address))
	requirePassed(t, made)
	if made.Lookups.OK != 100*made.Requests.OK {
		t.Fatalf("%v %v", made.Requests, made.Lookups)
	}
}

func TestLostConnectionsAreCountedAndReplaced(t *testing.T) {
	t.Parallel()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := socket.Addr().String()
	held := &store{keys: testKeys, before: func() error { time.Sleep(time.Millisecond); return nil }}
	first := serveOn(t, socket, held)
	time.AfterFunc(300*time.Millisecond, func() {
		first.Stop()
		time.Sleep(300 * time.Millisecond)
		again, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		serveOn(t, again, held)
	})
	o := short(methodGet, address)
	o.Concurrency, o.Rate, o.DurationS = 0, 500, 1.5
	made := runLoad(t, o)
	if made.count(t, notConnected) == 0 || made.hasWrong() || made.Requests.Total < 500 {
		t.Fatalf("%v", made.Requests)
	}
	if last := made.Series.OK[len(made.Series.OK)-2]; last == 0 || made.Connections.Opened != 2 {
		t.Fatalf("%v %v", made.Series, made.Connections)
	}
	if made.LongestGap.GapMs < 200 {
		t.Fatalf("%v", made.LongestGap)
	}
}

func TestServersThatLeaveLoseNothing(t *testing.T) {
	t.Parallel()
	held := &store{keys: testKeys, before: func() error { time.Sleep(time.Millisecond); return nil }}
	staying, _ := serve(t, held)
	leaving, server := serve(t, held)
	time.AfterFunc(100*time.Millisecond, server.GracefulStop)
	o := short(methodGet, staying, leaving)
	o.Concurrency, o.Rate, o.DurationS = 0, 200, 1.5
	made := runLoad(t, o)
	requirePassed(t, made)
	if made.Connections.GoAway != 1 || made.Connections.Lost > 1 {
		t.Fatalf("%v", made.Connections)
	}
}

func TestNobodyThereIsAnError(t *testing.T) {
	t.Parallel()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket.Close()
	interrupted, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	if _, err := newLoad(short(methodGet, socket.Addr().String())).run(interrupted); err == nil {
		t.Fatal("it ran")
	}
}

func TestInterruptedRunsReport(t *testing.T) {
	t.Parallel()
	address, _ := serve(t, &store{keys: testKeys})
	interrupted, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer stop()
	o := short(methodGet, address)
	o.DurationS = 3_600
	made, err := newLoad(o).run(interrupted)
	if err != nil {
		t.Fatal(err)
	}
	requirePassed(t, made)
	if made.MeasuredS > 60 {
		t.Fatalf("%f s", made.MeasuredS)
	}
}
