package conceal

import (
	"bytes"
	"testing"
)

func TestTheNameOfAHostIsAllThatIsLeft(t *testing.T) {
	host := "\x0a\x02n1\x12\x01h\x18\x05"
	stamp := "\x08\x01\x1a\x09" + host + "\x28\x07"
	for name, each := range map[string]struct{ answer, shown string }{
		"an answer":          {"\x08\x01\x12\x03abc\x1a\x0f" + stamp, "\x08\x01\x12\x03abc\x1a\x0a\x08\x01\x1a\x04\x0a\x02n1\x28\x07"},
		"stamps of a page":   {"\x1a\x0f" + stamp + "\x1a\x00", "\x1a\x0a\x08\x01\x1a\x04\x0a\x02n1\x28\x07\x1a\x00"},
		"nothing":            {"", ""},
		"a stamp of no host": {"\x1a\x02\x08\x01", "\x1a\x02\x08\x01"},
	} {
		shown, isWhole := Answer([]byte(each.answer))
		if !isWhole || !bytes.Equal(shown, []byte(each.shown)) {
			t.Errorf("%s: %q, %v", name, shown, isWhole)
		}
	}
}

func TestWhatIsNoAnswerIsPythons(t *testing.T) {
	for name, answer := range map[string]string{
		"cut short":             "\x1a\x05\x08",
		"a stamp that's a flag": "\x18\x01",
		"a host that's a flag":  "\x1a\x02\x18\x01",
		"an address of a flag":  "\x1a\x04\x1a\x02\x10\x01",
		"a port of text":        "\x1a\x05\x1a\x03\x1a\x01x",
		"a host cut short":      "\x1a\x04\x1a\x02\x12\x05",
	} {
		if shown, isWhole := Answer([]byte(answer)); isWhole {
			t.Errorf("%s: %q", name, shown)
		}
	}
}

func FuzzAddressesAreLeftOut(f *testing.F) {
	f.Add([]byte("\x08\x01\x1a\x0f\x08\x01\x1a\x09\x0a\x02n1\x12\x01h\x18\x05\x28\x07"))
	f.Add([]byte("\x1a\x04\x1a\x02\x18\x01"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		shown, isWhole := Answer(answer)
		if !isWhole {
			return
		}
		again, isWhole := Answer(shown)
		if !isWhole || !bytes.Equal(again, shown) || len(shown) > len(answer) {
			t.Fatalf("%x is shown as %x, and that as %x", answer, shown, again)
		}
	})
}
