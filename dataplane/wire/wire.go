// Package wire writes and reads parts of messages as they are on the wire.
package wire

import "google.golang.org/protobuf/encoding/protowire"

// elementTag is the tag of the elements of a batch: field 1, bytes.
const elementTag = 0x0a

// Framed returns the message whose repeated field 1 has these elements.
func Framed(elements [][]byte) []byte {
	size := 0
	for _, each := range elements {
		size += 1 + protowire.SizeBytes(len(each))
	}
	data := make([]byte, 0, size)
	for _, each := range elements {
		data = AppendElement(data, each)
	}
	return data
}

// AppendElement appends an element of field 1, which has these parts.
func AppendElement(data []byte, parts ...[]byte) []byte {
	size := 0
	for _, each := range parts {
		size += len(each)
	}
	data = protowire.AppendVarint(append(data, elementTag), uint64(size))
	for _, each := range parts {
		data = append(data, each...)
	}
	return data
}

// AppendField appends a field of bytes or text, by its tag.
func AppendField[T []byte | string](data []byte, tag byte, content T) []byte {
	return append(protowire.AppendVarint(append(data, tag), uint64(len(content))), content...)
}

// Elements returns those of field 1 of a message; nil if it has anything else, or more of them.
func Elements(data []byte, most int) [][]byte {
	found := make([][]byte, 0, min(most, 1+len(data)/16))
	for len(data) > 0 {
		if data[0] != elementTag || len(found) == most {
			return nil
		}
		content, size := protowire.ConsumeBytes(data[1:])
		if size < 0 {
			return nil
		}
		found, data = append(found, content), data[1+size:]
	}
	return found
}

// Field is one of a message.
type Field struct {
	Number protowire.Number
	Kind   protowire.Type
	// Bytes is what a field of bytes, text or a message has.
	Bytes []byte
	// Varint is what a field of a number or a flag has.
	Varint uint64
	// Whole is the field with its tag.
	Whole []byte
}

// IsBytes says whether the field has bytes, text or a message.
func (f *Field) IsBytes() bool { return f.Kind == protowire.BytesType }

// IsVarint says whether the field has a number or a flag.
func (f *Field) IsVarint() bool { return f.Kind == protowire.VarintType }

// Next returns the first field of a message, and what follows it; not if the message is cut short, or is none.
func Next(data []byte) (found Field, rest []byte, isRead bool) {
	number, kind, tag := protowire.ConsumeTag(data)
	if tag < 0 {
		return Field{}, nil, false
	}
	found.Number, found.Kind = number, kind
	var size int
	switch kind {
	case protowire.BytesType:
		found.Bytes, size = protowire.ConsumeBytes(data[tag:])
	case protowire.VarintType:
		found.Varint, size = protowire.ConsumeVarint(data[tag:])
	default:
		size = protowire.ConsumeFieldValue(number, kind, data[tag:])
	}
	if size < 0 {
		return Field{}, nil, false
	}
	found.Whole = data[:tag+size]
	return found, data[tag+size:], true
}

// ContentOf returns what a message has in its first field of bytes of this number; nil if it has none.
func ContentOf(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		found, rest, isRead := Next(message)
		if !isRead || found.Number == number && found.IsBytes() {
			return found.Bytes
		}
		message = rest
	}
	return nil
}

// Begin appends the tag of a field whose content's length nobody knows yet. The content is to be appended then.
// `End` takes what Begin returned.
func Begin(data []byte, tag byte) ([]byte, int) {
	data = append(data, tag, 0)
	return data, len(data)
}

// End writes the length of the content that was appended since `begun`.
func End(data []byte, begun int) []byte {
	size := len(data) - begun
	if more := protowire.SizeVarint(uint64(size)) - 1; more > 0 {
		var room [9]byte
		data = append(data, room[:more]...)
		copy(data[begun+more:], data[begun:begun+size])
	}
	protowire.AppendVarint(data[:begun-1], uint64(size))
	return data
}
