package admit

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// snapshotOf returns one of a store with text keys, with all its partitions held, and up to date.
func snapshotOf(isGlobal bool) *Snapshot[*heldReplica] {
	return snapshotOfKind(controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, isGlobal)
}

func snapshotOfKind(kind controlv1.EngineKind, isGlobal bool) *Snapshot[*heldReplica] {
	store := &controlv1.ServingStore{
		Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, ValueForm: controlv1.ValueForm_VALUE_FORM_TEXT,
		PartitionCount: 3, IsGlobal: isGlobal,
		Kind: kind,
	}
	for number := range store.PartitionCount {
		store.Replicas = append(store.Replicas, &controlv1.ServingReplica{Partition: number, Store: uint64(number), IsActive: true})
	}
	decided := &controlv1.ServingSnapshot{Epoch: 7, Stores: []*controlv1.ServingStore{store}}
	held := func(number uint64) (*heldReplica, bool) {
		return &heldReplica{number: number, position: 5, end: &controlv1.ServingEnd{Offset: 5, HoldsUntilUs: 1}}, true
	}
	return New(decided, held, func(string) func() *controlv1.ServingReport {
		return func() *controlv1.ServingReport { return nil }
	})
}

func TestAPageGoesOnBehindTheLastKey(t *testing.T) {
	text := func(data string) *key { return &key{[]byte(data), true} }
	unbound := []byte(nil)
	for _, each := range []struct {
		from, to    *key
		reverse     bool
		last        string
		start, stop []byte
	}{
		{nil, nil, false, "b", []byte("b\x00"), unbound},
		{nil, nil, false, "", []byte("\x00"), unbound},
		{text("c"), nil, false, "b", []byte("c"), unbound},
		{nil, text("c"), false, "x", []byte("x\x00"), []byte("c\x00")},
		{nil, nil, true, "b", unbound, []byte("b")},
		{nil, nil, true, "", unbound, []byte{}}, // there is nothing before the empty key
		{nil, text("a"), true, "b", unbound, []byte("a\x00")},
		{text("c"), text("d"), true, "b", []byte("c"), []byte("b")},
	} {
		page := &Page{Terms: Terms{Store: []byte("s")}, from: each.from, to: each.to, Paging: Paging{Reverse: each.reverse}, partitions: []uint64{1}}
		page.token = []byte(page.Token([]byte(each.last), Moment{}))
		granted, obstacle := snapshotOf(false).AdmitPage(page, 0)
		if obstacle != none {
			t.Fatalf("%+v: %v", each, obstacle)
		}
		// A stop that is empty is one, and nil is none.
		if !bytes.Equal(granted.Start, each.start) || !bytes.Equal(granted.Stop, each.stop) || (granted.Stop == nil) != (each.stop == nil) {
			t.Errorf("%+v: from %q to below %q", each, granted.Start, granted.Stop)
		}
	}
}

func TestATokenIsPythonsUnlessItIsAsWeWriteIt(t *testing.T) {
	page := &Page{Terms: Terms{Store: []byte("s")}, partitions: []uint64{1}}
	token := page.Token([]byte("key"), Moment{})
	for _, wrong := range []string{"damaged", token[:3], token[:2] + "\n" + token[2:], token + "\r", token + "AAAA"} {
		page.token = []byte(wrong)
		if _, obstacle := snapshotOf(false).AdmitPage(page, 0); obstacle != keyObstacle {
			t.Errorf("%q: %v", wrong, obstacle)
		}
	}
	page.token = []byte(token)
	page.Reverse = true
	if _, obstacle := snapshotOf(false).AdmitPage(page, 0); obstacle != keyObstacle {
		t.Errorf("the token of another scan: %v", obstacle)
	}
}

func TestOfAGlobalStoreAPageIsOfOnePartition(t *testing.T) {
	store := []byte{scanStore<<3 | byte(protowire.BytesType), 1, 's'}
	one := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(store), scanPartition, protowire.VarintType), 2)
	several := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(store), scanPartitions, protowire.BytesType), []byte{2})
	for _, each := range []struct {
		request            []byte
		isGlobal, isPlaced bool
	}{{one, true, true}, {one, false, true}, {several, false, true}, {several, true, false}, {store, true, false}} {
		page, isRead := ReadPage(each.request)
		if !isRead {
			t.Fatalf("%x can't be read", each.request)
		}
		expected := none
		if !each.isPlaced {
			expected = partition
		}
		if _, obstacle := snapshotOf(each.isGlobal).AdmitPage(page, 0); obstacle != expected {
			t.Errorf("%x of a store that is global: %v: %v", each.request, each.isGlobal, obstacle)
		}
	}
}
