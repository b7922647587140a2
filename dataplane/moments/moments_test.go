package moments

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"slices"
	"testing"
)

// Python writes the file: tests/integration/query_service/test_kept_by_the_program.py.
var cases = flag.String("cases", "", "a file with questions, and what the reference says")

func TestAStateThatLastsIsKeptForOneOfItsBatches(t *testing.T) {
	const newest = 700
	for first := range int64(newest + 2) {
		isKept := false
		for last := first; last < newest+2; last++ {
			isKept = isKept || IsKept(last, newest)
			if Covers(first, last, newest) != isKept {
				t.Fatalf("from %d to %d: kept for one of them: %t", first, last, isKept)
			}
		}
		if first > 0 && Covers(first, first-1, newest) {
			t.Fatalf("one before %d", first)
		}
	}
}

func TestWhatIsDroppedOnceIsNeverWantedAgain(t *testing.T) {
	for batch := range int64(100) {
		for newest, was := batch, true; newest < batch+2*(Dense+sparse); newest++ {
			now := IsKept(batch, newest)
			if now && !was || newest < batch+Dense && !now || newest >= batch+Dense+sparse && now {
				t.Fatalf("%d at %d: %t", batch, newest, now)
			}
			was = now
		}
	}
}

func TestAHeaderHasItsBatch(t *testing.T) {
	for _, each := range []struct {
		value []byte
		batch int64
	}{
		{nil, None}, {[]byte{}, None}, {[]byte{0}, 0}, {[]byte{0x7f}, 127}, {[]byte{0x80}, None}, {[]byte{0x80, 1}, 128},
		{[]byte{1, 1}, None}, {[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, math.MaxInt64},
		{[]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1}, None},
	} {
		if found := BatchOf(each.value); found != each.batch {
			t.Errorf("%x is %d, not %d", each.value, found, each.batch)
		}
	}
}

func TestAgainstReference(t *testing.T) {
	if *cases == "" {
		t.Skip("Python runs it")
	}
	data, err := os.ReadFile(*cases)
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		Headers []struct {
			Value []byte
			Batch int64
		}
		Kept, Covers, States [][]int64 // what is asked, and 1 if the reference says yes
		Leases               []struct {
			Kept []State
			Most int64
			Stay []bool
		}
	}
	if err := json.Unmarshal(data, &said); err != nil {
		t.Fatal(err)
	}
	if len(said.Headers) == 0 || len(said.Kept) == 0 || len(said.Covers) == 0 || len(said.States) == 0 || len(said.Leases) == 0 {
		t.Fatal("the file lacks questions")
	}
	for _, each := range said.Headers {
		if found := BatchOf(each.Value); found != each.Batch {
			t.Errorf("%x is %d, not %d", each.Value, found, each.Batch)
		}
	}
	for _, q := range said.Kept {
		if IsKept(q[0], q[1]) != (q[2] == 1) {
			t.Errorf("kept: %v", q)
		}
	}
	for _, q := range said.Covers {
		if Covers(q[0], q[1], q[2]) != (q[3] == 1) {
			t.Errorf("covers: %v", q)
		}
	}
	for _, q := range said.States {
		if IsStateOf(q[0], q[1], q[2], q[3], q[4]) != (q[5] == 1) {
			t.Errorf("is the state of: %v", q)
		}
	}
	for _, q := range said.Leases {
		if found := Staying(q.Kept, q.Most); !slices.Equal(found, q.Stay) {
			t.Errorf("of %+v, within %d bytes, stay %v, not %v", q.Kept, q.Most, found, q.Stay)
		}
	}
}
