package admit

import (
	"bytes"
	"encoding/base64"
	"hash/crc32"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"statehouse-dataplane/keys"
	"statehouse-dataplane/wire"
)

// Paging is what a request says of the page that it wants.
type Paging struct {
	Reverse bool
	// Version is the version of the application that is asked, as tokens have it. Its caller sets it.
	Version string

	size  uint64
	token []byte
}

const (
	// As statehouse/contract/paging.py has it.
	usualEntries, mostEntries = 100, 1_000

	// Fields of PageToken.
	tokenLastKey, tokenFingerprint, tokenQuery, tokenBatch, tokenVersion = 1, 2, 4, 5, 6
)

func (p *Paging) takeSize(found wire.Field) bool {
	p.size = found.Varint
	return isNumber(found)
}

func (p *Paging) takeToken(found wire.Field) bool {
	p.token = found.Bytes
	return found.IsBytes() && utf8.Valid(found.Bytes)
}

func (p *Paging) takeReverse(found wire.Field) bool {
	p.Reverse = true
	return !found.IsBytes() && found.Varint == 1
}

// entries returns the most entries of the page.
func (p *Paging) entries() int {
	if p.size == 0 {
		return usualEntries
	}
	return int(min(p.size, mostEntries))
}

// left returns the part of a range that the token leaves to read, and the batch that the walk is of; not if Python has to say
// what that is.
func (p *Paging) left(of identified, start, stop []byte) (from, to []byte, shown Moment, isRead bool) {
	if len(p.token) == 0 {
		return start, stop, Moment{}, true
	}
	last, shown, isRead := tokenOf(p.token)
	if !isRead || p.tokenFor(of, last, shown) != string(p.token) {
		// Damaged, of another scan or version, of a later format, or not as anybody writes it.
		return nil, nil, Moment{}, false
	}
	if p.Reverse {
		if stop == nil || bytes.Compare(last, stop) < 0 {
			stop = last
		}
	} else if after := keys.Following(last); bytes.Compare(after, start) > 0 {
		start = after
	}
	return start, stop, shown, true
}

// identified is a request for a page. Its identity is the request's name, and the fields that must be equal on every page,
// as they are serialized.
type identified interface{ identity() []byte }

// tokenFor returns the token of the page that follows a key, in a walk that is of a batch if one is set.
func (p *Paging) tokenFor(of identified, last []byte, shown Moment) string {
	var data []byte
	if len(last) > 0 {
		data = protowire.AppendBytes(protowire.AppendTag(data, tokenLastKey, protowire.BytesType), last)
	}
	if fingerprint := crc32.ChecksumIEEE(of.identity()); fingerprint != 0 {
		data = protowire.AppendVarint(protowire.AppendTag(data, tokenFingerprint, protowire.VarintType), uint64(fingerprint))
	}
	if shown.IsSet {
		data = appendMoment(data, tokenQuery, tokenBatch, shown.query, shown.Batch)
	}
	if p.Version != "" {
		data = protowire.AppendString(protowire.AppendTag(data, tokenVersion, protowire.BytesType), p.Version)
	}
	return base64.URLEncoding.EncodeToString(data)
}

// tokenOf returns the last key that a token says was returned, and the batch that the walk is of.
func tokenOf(token []byte) (last []byte, shown Moment, isRead bool) {
	data, err := base64.URLEncoding.DecodeString(string(token))
	if err != nil {
		return nil, Moment{}, false
	}
	last = []byte{} // the empty key, which is one
	for len(data) > 0 {
		found, rest, isRead := next(data)
		if !isRead {
			return nil, Moment{}, false
		}
		data = rest
		switch found.Number {
		case tokenLastKey:
			last = found.Bytes
		case tokenQuery:
			shown.IsSet, shown.query = len(found.Bytes) > 0, string(found.Bytes)
		case tokenBatch:
			shown.Batch = int64(found.Varint)
		}
	}
	return last, shown, shown.Batch >= 0 && utf8.ValidString(shown.query)
}

func appendStore(to, store []byte) []byte {
	if len(store) == 0 {
		return to
	}
	return protowire.AppendBytes(protowire.AppendTag(to, requestStore, protowire.BytesType), store)
}

func appendSet(to []byte, number protowire.Number, value bool) []byte {
	if !value {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, number, protowire.VarintType), 1)
}
