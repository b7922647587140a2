package main

import (
	"testing"
)

// Of statehouse/partitioning.py, made by Kafka's Java client.
var vectors = []struct {
	key  string
	hash int32
}{
	{"", 275646681},
	{"\x00", 375494588},
	{"\xff", -311467685},
	{"\x80\x00", -747627646},
	{"\x80\x80\x80", -1134684817},
	{"\xff\xff\x7f", -229777944},
	{"\x80\x00\x00\x80", 120646186},
	{"\xff\xfe\xfd\xfc\xfb", 524068735},
	{"foobar", -790332482},
	{"Zoë", -1306457314},
	{"a-little-bit-longer-string", -1486304829},
}

func TestKeysAreHashedAsJavaDoesIt(t *testing.T) {
	for _, each := range vectors {
		if found := int32(murmur2([]byte(each.key))); found != each.hash {
			t.Errorf("%x: %d instead of %d", each.key, found, each.hash)
		}
	}
}

func FuzzSnapshotsAreReadOrRefused(f *testing.F) {
	f.Add([]byte("\x08\x01\x12\x02z\x00\x1a\x0a\x0a\x01n\x12\x05h:123\x22\x0a\x0a\x01s\x10\x01\x1a\x03\x01\x00\x01"))
	f.Add([]byte("\x22\x03\x0a\x01s"))
	f.Add([]byte("\x1a\x80"))
	request := []byte("\x0a\x01s\x12\x03\x0a\x01k")
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := snapshotIn(data)
		if err == nil {
			s.decide(request)
		}
	})
}

func FuzzRequestsAreDecidedOrNot(f *testing.F) {
	s, err := snapshotIn([]byte("\x1a\x0a\x0a\x01n\x12\x05h:123\x22\x0a\x0a\x01s\x10\x02\x1a\x03\x01\x00\x01"))
	if err != nil {
		f.Fatal(err)
	}
	for _, each := range []string{"\x0a\x01s\x12\x04\x0a\x0242", "\x0a\x01s\x12\x03\x12\x01k\x20\x01", "\x0a\xff\xff\xff\xff\x0f"} {
		f.Add([]byte(each))
	}
	f.Fuzz(func(t *testing.T, request []byte) { s.decide(request) })
}
