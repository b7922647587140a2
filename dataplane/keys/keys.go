// Package keys turns keys that are text into bytes, and knows the order of these.
package keys

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// Serialized returns the bytes of a key that is text; not if it is written otherwise than its form has it, or its form is
// Python's to read. What isn't the text itself goes to `buffer`.
func Serialized(form controlv1.KeyForm, text []byte, buffer *[8]byte) ([]byte, bool) {
	switch form {
	case controlv1.KeyForm_KEY_FORM_TEXT:
		return text, true
	case controlv1.KeyForm_KEY_FORM_LONG:
		number, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || strconv.FormatInt(number, 10) != string(text) {
			return nil, false
		}
		binary.BigEndian.PutUint64(buffer[:], uint64(number))
		return buffer[:], true
	}
	return nil, false
}

// After returns the first key behind all that begin with a prefix; nil if there is none.
func After(prefix []byte) []byte {
	for last := len(prefix) - 1; last >= 0; last-- {
		if prefix[last] != math.MaxUint8 {
			end := slices.Clone(prefix[:last+1])
			end[last]++
			return end
		}
	}
	return nil
}

// Following returns the lowest key above another.
func Following(other []byte) []byte { return append(slices.Clip(other), 0) }
