package serve

import (
	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
)

// Tags of CountResponse's fields.
const (
	countTag   = 1<<3 | byte(protowire.VarintType)
	isExactTag = 2<<3 | byte(protowire.VarintType)
)

// Count answers a serialized CountRequest; false if that is for Python to do.
func (s *Served) Count(call Call, request []byte) ([]byte, bool) {
	return s.answered(call, request, (*Served).count)
}

func (s *Served) count(r *reading) ([]byte, read) {
	counting, isRead := admit.ReadCounting(r.request)
	if !isRead || !s.isPermitted(r.by, r.call, &counting.Terms, r.us) {
		return nil, read{}
	}
	replicas, obstacle := r.by.AdmitCounting(counting, r.us)
	if obstacle != controlv1.ServingObstacle_SERVING_OBSTACLE_UNSPECIFIED {
		return nil, read{}
	}
	count := uint64(0)
	for at := range replicas {
		found, isFound := countOf(&replicas[at], counting.IsExact, r)
		if !isFound {
			return nil, read{}
		}
		count += uint64(found)
	}
	data := protowire.AppendVarint(append(make([]byte, 0, usualBytes), countTag), count)
	data = protowire.AppendVarint(append(data, isExactTag), protowire.EncodeBool(counting.IsExact))
	data = appendStamps(data, replicas)
	return data, read{replicas[0].Held, controlv1.ServingRead_SERVING_READ_COUNT, 0}
}

// countOf returns the number of a store's entries. Stores keep what Python takes for an estimate. For a key-value store that
// is exact; for others exact numbers take a walk, and so do all numbers of a batch.
func countOf(of *admit.Stamped[*source], isExact bool, r *reading) (int64, bool) {
	kept, isStore := of.Held.Store().(interface {
		presenter
		Kept() (int64, bool)
		Count(shown stores.Shown, walk *stores.Walk) (int64, error)
	})
	if !isStore {
		return 0, false
	}
	_, isKeyValue := kept.(*stores.KeyValue)
	if !of.Moment.IsSet && (isKeyValue || !isExact) {
		return kept.Kept()
	}
	shown, err := shownBy(of, kept)
	if err != nil {
		return 0, false
	}
	defer shown.Close()
	count, err := kept.Count(shown, r.walk())
	return count, err == nil
}
