// Package conceal takes out of answers where nodes are: statehouse/security/concealed.py, in Go, for lookups and pages. What
// it doesn't know well enough is Python's.
package conceal

import (
	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/wire"
)

// Fields of GetResponse and ScanResponse, of ReplicaStamp, and of Host.
const (
	answerStamps = 3
	stampHost    = 3
	hostHost     = 2
	hostPort     = 3
)

// Answer returns a serialized GetResponse or ScanResponse without the addresses of nodes; not if it isn't one.
func Answer(answer []byte) ([]byte, bool) {
	return rewritten(make([]byte, 0, len(answer)), answer, answerStamps, stamp)
}

func stamp(to, data []byte) ([]byte, bool) { return rewritten(to, data, stampHost, host) }

// rewritten appends a message whose fields of a number are written anew. They are shorter then, and so are their lengths.
func rewritten(
	to, data []byte, number protowire.Number, write func(to, data []byte) ([]byte, bool),
) ([]byte, bool) {
	for len(data) > 0 {
		found, rest, isRead := wire.Next(data)
		if !isRead {
			return nil, false
		}
		data = rest
		if found.Number != number {
			to = append(to, found.Whole...)
			continue
		}
		if !found.IsBytes() {
			return nil, false
		}
		inner, isWhole := write(make([]byte, 0, len(found.Bytes)), found.Bytes)
		if !isWhole {
			return nil, false
		}
		to = protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), inner)
	}
	return to, true
}

// host appends a Host that has its name, and nothing of where it is.
func host(to, data []byte) ([]byte, bool) {
	for len(data) > 0 {
		found, rest, isRead := wire.Next(data)
		switch {
		case !isRead, found.Number == hostHost && !found.IsBytes(), found.Number == hostPort && !found.IsVarint():
			return nil, false
		case found.Number != hostHost && found.Number != hostPort:
			to = append(to, found.Whole...)
		}
		data = rest
	}
	return to, true
}
