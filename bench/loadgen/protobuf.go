package main

import "google.golang.org/protobuf/encoding/protowire"

// fields reads a protobuf message field by field, without a copy.
type fields struct {
	rest     []byte
	number   protowire.Number
	varint   uint64 // of a varint field
	content  []byte // of a field with a length
	isBroken bool   // the message doesn't parse
}

func fieldsOf(message []byte) fields {
	return fields{rest: message}
}

// next goes to the next field; false at the end, or where the message doesn't parse.
func (f *fields) next() bool {
	if len(f.rest) == 0 || f.isBroken {
		return false
	}
	number, kind, length := protowire.ConsumeTag(f.rest)
	f.isBroken = length < 0
	if f.isBroken {
		return false
	}
	f.number, f.varint, f.content, f.rest = number, 0, nil, f.rest[length:]
	switch kind {
	case protowire.VarintType:
		f.varint, length = protowire.ConsumeVarint(f.rest)
	case protowire.BytesType:
		f.content, length = protowire.ConsumeBytes(f.rest)
	default:
		length = protowire.ConsumeFieldValue(number, kind, f.rest)
	}
	f.isBroken = length < 0
	if f.isBroken {
		return false
	}
	f.rest = f.rest[length:]
	return true
}

func appendString(to []byte, number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), content)
}

func appendNumber(to []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), value)
}
