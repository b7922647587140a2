package orders

import (
	"bytes"

	"statehouse-dataplane/engine"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/stores"
)

// sum goes on with the sum over a view, or begins it.
func (o *Orders) sum(order *controlv1.EngineSum) (*controlv1.EngineAnswer, error) {
	view, summing, err := o.summing(order)
	if err != nil {
		return nil, err
	}
	summed := &controlv1.EngineSummed{}
	part, err := summing.GoOn(view, int(order.MostBytes), func(key, digest, time []byte) {
		summed.Listed = append(summed.Listed, bytes.Clone(key), bytes.Clone(digest), bytes.Clone(time))
	})
	if err != nil {
		return nil, err
	}
	summed.Entries, summed.Bytes, summed.IsAll = uint64(part.Entries), uint64(part.Bytes), part.IsAll
	summed.PassedOver = uint64(part.PassedOver)
	if part.IsAll {
		summed.Counts, summed.Sums = summing.Sums.Counts, summing.Sums.Bytes()
	}
	return &controlv1.EngineAnswer{Answer: &controlv1.EngineAnswer_Summed{Summed: summed}}, nil
}

// summing returns a view, and the sum over it. One order at a time goes on with it.
func (o *Orders) summing(order *controlv1.EngineSum) (*engine.View, *stores.Summing, error) {
	r, err := o.of(order.Store)
	if err != nil {
		return nil, nil, err
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	view := o.views[order.View]
	if view == nil || view.IsClosing() {
		return nil, nil, engine.ErrClosed
	}
	if o.sums[order.View] == nil {
		begun, err := stores.NewSumming(r.store, stores.Wanted{
			Buckets: int(order.Buckets), Listed: order.Listed, FirstMS: order.FirstMs, RecordedFromMS: order.RecordedFromMs,
		})
		if err != nil {
			return nil, nil, err
		}
		o.sums[order.View] = begun
	}
	return view, o.sums[order.View], nil
}
