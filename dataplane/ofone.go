package main

import (
	"bytes"

	"statehouse-dataplane/wire"
)

// Fields of GetResponse's stamp, of a stamp's batch, and of that one's query.
const stampField, shownField, queryField = 3, 12, 1

// ofOne is which batches nodes' answers show that are to be of one batch of each query. Mostly they are, though each node was
// asked for the newest: then the caller may have them. What else is to be asked is the router's to say, by
// statehouse/contract/agreement.py.
type ofOne struct {
	shown [][]byte // serialized statehouse.v1.Moments, one of each query
}

// agrees says whether a stamp names a batch, and none of its query that differs from those before it.
func (o *ofOne) agrees(stamp []byte) bool {
	moment := wire.ContentOf(stamp, shownField)
	if moment == nil {
		return false // a node of an earlier version
	}
	for _, each := range o.shown {
		if bytes.Equal(each, moment) {
			return true
		}
	}
	query := wire.ContentOf(moment, queryField)
	for _, each := range o.shown {
		if bytes.Equal(wire.ContentOf(each, queryField), query) {
			return false
		}
	}
	o.shown = append(o.shown, moment)
	return true
}

// agreesWith is agrees for the stamp of a serialized GetResponse.
func (o *ofOne) agreesWith(response []byte) bool {
	return o.agrees(wire.ContentOf(response, stampField))
}
