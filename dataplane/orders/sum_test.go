package orders

import (
	"bytes"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
	"statehouse-dataplane/sums"
)

func TestAViewIsSummedByOrders(t *testing.T) {
	o := New(func(*controlv1.EngineReport) {}, nil)
	defer o.Close()
	r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, 0)
	defer closeStore(t, r)
	o.stores[1] = r
	begin(t, r, stores.Checkpoint{}, true)
	take(t, r, follow.Slice{Records: []stores.Record{
		{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2"), Offset: 1},
	}, Next: 2})
	viewed := o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_View{View: &controlv1.EngineView{Store: 1}}})
	order := &controlv1.EngineSum{Store: 1, View: viewed.GetViewed().View, MostBytes: 1, Buckets: 2, Listed: []uint32{0, 1}}
	carried := func() *controlv1.EngineAnswer {
		return o.Carry(&controlv1.EngineOrder{Order: &controlv1.EngineOrder_Sum{Sum: order}})
	}
	should, size := sums.New(2), uint64(0)
	for _, each := range []struct{ key, value string }{{"a", "1"}, {"b", "2"}} {
		stored := append(make([]byte, 8), each.value...)
		_, digest := should.Add([]byte(each.key), stored)
		summed := carried().GetSummed()
		if summed.IsAll || summed.Entries != 1 || !bytes.Equal(bytes.Join(summed.Listed, nil), append(append([]byte(each.key), digest[:]...), stored[:8]...)) {
			t.Fatalf("%v", summed)
		}
		size += summed.Bytes
	}
	if summed := carried().GetSummed(); !summed.IsAll || summed.Entries != 0 || !bytes.Equal(summed.Sums, should.Bytes()) || size != 20 {
		t.Fatalf("%v, of %d bytes", summed, size)
	}
	if err := o.unview(order.View); err != nil {
		t.Fatal(err)
	}
	if fault := carried().Fault; fault.GetKind() != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_CLOSED || len(o.sums) > 0 {
		t.Fatalf("%v, and %d sums are kept", fault, len(o.sums))
	}
}

func TestWhatIsReadApartKeepsItsPace(t *testing.T) {
	r := replicaIn(t, filepath.Join(t.TempDir(), "store"), controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, 0)
	defer closeStore(t, r)
	begin(t, r, stores.Checkpoint{}, true)
	took := func(bytesASecond uint64, ends bool) (time.Duration, error) {
		p := newPace(r, bytesASecond)
		began := time.Now()
		if ends {
			p.end()
		}
		for range 3 {
			if err := p.Take(follow.Slice{Bytes: 500}); err != nil {
				return 0, err
			}
		}
		return time.Since(began), nil
	}
	synctest.Test(t, func(t *testing.T) {
		for _, each := range []struct {
			bytesASecond uint64
			ends         bool
			took         time.Duration
		}{{1_000, false, 1_500 * time.Millisecond}, {1_000, true, 0}, {0, false, 0}} {
			if found, err := took(each.bytesASecond, each.ends); err != nil || found != each.took {
				t.Errorf("%+v: it took %v, %v", each, found, err)
			}
		}
	})
	var none *pace
	none.end()
}
