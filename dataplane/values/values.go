// Package values turns stored values into messages, as statehouse/serdes/builtin.py does. Nothing here says why a value
// can't be shown: Python answers for all that is unusual.
package values

import (
	"encoding/binary"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Form is how a store's values are shown.
type Form int

// The forms. No value is shown in the form 0.
const (
	Raw Form = iota + 1
	Text
	Long
	Double
	JSON
	// JSONText is a JSON document as it is written.
	JSONText
)

// Tags of statehouse.v1.Value's fields.
const (
	jsonTag     = 0x0a
	textTag     = 0x12
	longTag     = 0x18
	doubleTag   = 0x21
	rawTag      = 0x2a
	jsonTextTag = 0x32
)

const (
	numberBytes = 8
	// A length from here on takes more than a byte.
	longLength = 1 << 7
)

// Append appends the serialized statehouse.v1.Value of a stored value. If it returns false, it appends nothing, and
// Python has to say what the value is: an error, or something unusual.
func Append(to []byte, form Form, data []byte) ([]byte, bool) {
	switch form {
	case Raw:
		return delimited(to, rawTag, data), true
	case Text:
		if utf8.Valid(data) {
			return delimited(to, textTag, data), true
		}
	case Long:
		if len(data) == numberBytes {
			return protowire.AppendVarint(append(to, longTag), binary.BigEndian.Uint64(data)), true
		}
	case Double:
		if len(data) == numberBytes {
			return binary.LittleEndian.AppendUint64(append(to, doubleTag), binary.BigEndian.Uint64(data)), true
		}
	case JSON:
		longer, content := opened(to, jsonTag)
		d := document{rest: data, to: longer}
		if d.whole() {
			return closed(d.to, content), true
		}
	case JSONText:
		// Its message is thrown away: what has none is no document.
		d := document{rest: data, to: to}
		if d.whole() {
			return delimited(d.to[:len(to)], jsonTextTag, data), true
		}
	}
	return to, false
}

// delimited appends a field with its length.
func delimited(to []byte, tag byte, content []byte) []byte {
	return append(protowire.AppendVarint(append(to, tag), uint64(len(content))), content...)
}

// opened begins a field whose length is not known yet, and returns where its content begins.
func opened(to []byte, tag byte) ([]byte, int) {
	to = append(to, tag, 0)
	return to, len(to)
}

// closed ends a field that `opened` has begun. Most are so short that the byte left for the length is enough; the content
// of others moves.
func closed(to []byte, content int) []byte {
	size := len(to) - content
	if size >= longLength {
		more := protowire.SizeVarint(uint64(size)) - 1
		to = append(to, make([]byte, more)...)
		copy(to[content+more:], to[content:])
	}
	binary.PutUvarint(to[content-1:], uint64(size))
	return to
}
