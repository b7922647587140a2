// Package ordered encodes keys that further bytes follow: entries sort by the key first, then by these bytes. See
// statehouse/keys/ordered.py.
package ordered

import "bytes"

var (
	end  = []byte{0, 1}
	zero = []byte{0, 0xff}
)

// EndBytes is how many bytes an encoded key has at its end that are none of the key's.
const EndBytes = 2

// Append appends the encoded key. Encoded keys sort like keys, and none begins another.
func Append(to, key []byte) []byte {
	for {
		at := bytes.IndexByte(key, 0)
		if at < 0 {
			return append(append(to, key...), end...)
		}
		to = append(append(to, key[:at]...), zero...)
		key = key[at+1:]
	}
}

// End returns how long the encoded key at the beginning of an entry's key is; -1 if there is none.
func End(entry []byte) int {
	if at := bytes.Index(entry, end); at >= 0 {
		return at + EndBytes
	}
	return -1
}

// Key returns the key that is encoded.
func Key(encoded []byte) []byte {
	return bytes.ReplaceAll(encoded[:len(encoded)-EndBytes], zero, []byte{0})
}
