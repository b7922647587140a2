package admit

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// snapshotOf returns one of a store with text keys, of which all partitions are held, and up to date.
func snapshotOf(isGlobal bool) *Snapshot[*heldReplica] {
	store := &controlv1.ServingStore{
		Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, ValueForm: controlv1.ValueForm_VALUE_FORM_TEXT,
		PartitionCount: 3, IsGlobal: isGlobal,
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
