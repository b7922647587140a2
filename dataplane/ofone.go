package main

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// Tags of GetResponse's stamp, of a stamp's batch, and of that one's query.
	stampTag, shownTag, queryTag = 0x1a, 0x62, 0x0a
)

// ofOne is which batches nodes' answers show that are to be of one batch of each query. Mostly they are, though each node was
// asked for the newest: then the caller may have them. What else is to be asked is the router's to say, by
// statehouse/contract/agreement.py.
type ofOne struct {
	shown [][]byte // serialized statehouse.v1.Moments, one of each query
}

// agrees says whether a stamp names a batch, and none of its query that differs from those before it.
func (o *ofOne) agrees(stamp []byte) bool {
	moment := contentIn(stamp, shownTag)
	if moment == nil {
		return false // a node of an earlier version
	}
	for _, each := range o.shown {
		if bytes.Equal(each, moment) {
			return true
		}
	}
	query := contentIn(moment, queryTag)
	for _, each := range o.shown {
		if bytes.Equal(contentIn(each, queryTag), query) {
			return false
		}
	}
	o.shown = append(o.shown, moment)
	return true
}

// agreesWith is agrees for the stamp of a serialized GetResponse.
func (o *ofOne) agreesWith(response []byte) bool { return o.agrees(contentIn(response, stampTag)) }

// contentIn returns what a message has in a field of bytes with this tag, nil if it has none.
func contentIn(message []byte, tag byte) []byte {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		if size == 1 && message[0] == tag {
			content, length := protowire.ConsumeBytes(message[1:])
			if length < 0 {
				return nil
			}
			return content
		}
		length := protowire.ConsumeFieldValue(number, kind, message[size:])
		if length < 0 {
			return nil
		}
		message = message[size+length:]
	}
	return nil
}
