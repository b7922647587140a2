// Package conceal takes out of answers where nodes are: statehouse/security/concealed.py, in Go, for lookups and pages. What
// it doesn't know well enough is Python's.
package conceal

import "google.golang.org/protobuf/encoding/protowire"

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
		found, kind, size := field(data)
		if size < 0 {
			return nil, false
		}
		if found != number {
			to, data = append(to, data[:size]...), data[size:]
			continue
		}
		if kind != protowire.BytesType {
			return nil, false
		}
		_, _, tag := protowire.ConsumeTag(data)
		content, _ := protowire.ConsumeBytes(data[tag:size])
		inner, isWhole := write(make([]byte, 0, len(content)), content)
		if !isWhole {
			return nil, false
		}
		to = protowire.AppendBytes(append(to, data[:tag]...), inner)
		data = data[size:]
	}
	return to, true
}

// host appends a Host that has its name, and nothing of where it is.
func host(to, data []byte) ([]byte, bool) {
	for len(data) > 0 {
		found, kind, size := field(data)
		switch {
		case size < 0, found == hostHost && kind != protowire.BytesType, found == hostPort && kind != protowire.VarintType:
			return nil, false
		case found != hostHost && found != hostPort:
			to = append(to, data[:size]...)
		}
		data = data[size:]
	}
	return to, true
}

// field returns the number, the type and the size of the first field of a message; a negative size if there is none.
func field(data []byte) (protowire.Number, protowire.Type, int) {
	number, kind, tag := protowire.ConsumeTag(data)
	if tag < 0 {
		return 0, 0, tag
	}
	size := protowire.ConsumeFieldValue(number, kind, data[tag:])
	if size < 0 {
		return 0, 0, size
	}
	return number, kind, tag + size
}
