package stores

import "bytes"

// Ordered keys: entries sort by the key first, then by the bytes that follow it. See statehouse/keys/ordered.py.

var (
	end  = []byte{0, 1}
	zero = []byte{0, 0xff}
)

// appendEscaped appends the encoded key. Encoded keys sort like keys, and none begins another.
func appendEscaped(to, key []byte) []byte {
	for {
		at := bytes.IndexByte(key, 0)
		if at < 0 {
			return append(append(to, key...), end...)
		}
		to = append(append(to, key[:at]...), zero...)
		key = key[at+1:]
	}
}

// escapedEnd returns how long the encoded key at the beginning of an entry's key is; -1 if there is none.
func escapedEnd(entry []byte) int {
	if at := bytes.Index(entry, end); at >= 0 {
		return at + len(end)
	}
	return -1
}

// unescaped returns the key that is encoded.
func unescaped(encoded []byte) []byte {
	return bytes.ReplaceAll(encoded[:len(encoded)-len(end)], zero, []byte{0})
}
