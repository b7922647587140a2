package serve

import (
	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/wire"
)

// Tags of CountResponse's fields.
const (
	countTag         = 1<<3 | byte(protowire.VarintType)
	isExactTag       = 2<<3 | byte(protowire.VarintType)
	countReplicasTag = 3<<3 | byte(protowire.BytesType)
)

// Count answers a serialized CountRequest; false if that is for Python to do. The numbers are those that stores keep: nothing
// is walked over.
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
		kept, isKept := replicas[at].Held.Kept()
		if !isKept {
			return nil, read{}
		}
		count += uint64(kept)
	}
	data := protowire.AppendVarint(append(make([]byte, 0, usualBytes), countTag), count)
	data = protowire.AppendVarint(append(data, isExactTag), protowire.EncodeBool(counting.IsExact))
	data = appendStamps(data, countReplicasTag, replicas)
	return data, read{replicas[0].Held, controlv1.ServingRead_SERVING_READ_COUNT, 0}
}

// appendStamps appends the stamps of replicas, in a field.
func appendStamps(to []byte, tag byte, replicas []admit.Stamped[*source]) []byte {
	for at := range replicas {
		var begun int
		to, begun = wire.Begin(to, tag)
		to = wire.End(replicas[at].AppendStamp(to), begun)
	}
	return to
}
