package admit

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/keys"
)

// Page is a request for a page: a statehouse.v1.ScanRequest that has nothing else than what is here.
type Page struct {
	Terms
	Reverse bool

	from, to, prefix *key
	size             uint64
	token            []byte
	partitions       []uint64
	areSeveral       bool // in the field for several
}

// Fields of ScanRequest, and of PageToken.
const (
	scanStore, scanFrom, scanTo, scanPrefix, scanReverse, scanSize, scanToken = 1, 2, 3, 4, 5, 6, 7

	scanFreshness, scanRaw, scanPartition, scanExact, scanForwarding, scanPartitions = 8, 9, 10, 14, 15, 16

	tokenLastKey, tokenFingerprint = 1, 2
)

const (
	// As statehouse/contract/paging.py has it.
	usualEntries, mostEntries = 100, 1_000
	scanName                  = "ScanRequest"
)

// ReadPage reads a serialized ScanRequest; not if it has anything else than what Page has, or anything twice.
func ReadPage(request []byte) (*Page, bool) {
	page := &Page{}
	var fields seen
	for len(request) > 0 {
		found, rest, isRead := next(request)
		if !isRead || !fields.isNew(found.number) || !page.take(found) {
			return nil, false
		}
		request = rest
	}
	return page, utf8.Valid(page.Store)
}

func (p *Page) take(found field) bool {
	isRead := found.isBytes
	switch found.number {
	case scanStore:
		p.Store = found.bytes
	case scanFrom, scanTo, scanPrefix:
		var read key
		if read, isRead = readKey(found.bytes); !found.isBytes {
			return false
		}
		*map[protowire.Number]**key{scanFrom: &p.from, scanTo: &p.to, scanPrefix: &p.prefix}[found.number] = &read
	case scanToken:
		p.token = found.bytes
	case scanFreshness:
		isRead = found.isBytes && p.readFreshness(found.bytes)
	case scanForwarding:
		isRead = found.isBytes && p.readForwarding(found.bytes)
	case scanPartitions:
		if isRead = found.isBytes && len(p.partitions) == 0; isRead {
			p.partitions, isRead = packed(found.bytes)
			p.areSeveral = len(p.partitions) > 0
		}
	case scanSize:
		p.size, isRead = found.varint, !found.isBytes && found.varint <= math.MaxUint32
	case scanPartition:
		isRead = !found.isBytes && len(p.partitions) == 0
		p.partitions = []uint64{found.varint}
	case scanReverse, scanRaw, scanExact:
		*map[protowire.Number]*bool{scanReverse: &p.Reverse, scanRaw: &p.Raw, scanExact: &p.Exact}[found.number] = true
		isRead = !found.isBytes && found.varint == 1
	default:
		return false
	}
	return isRead
}

// HasPrefix says whether it is of the keys with a prefix.
func (p *Page) HasPrefix() bool { return p.prefix != nil }

// HasBounds says whether it has a first or a last key.
func (p *Page) HasBounds() bool { return p.from != nil || p.to != nil }

// packed returns the numbers of a packed field.
func packed(data []byte) ([]uint64, bool) {
	var numbers []uint64
	for len(data) > 0 {
		number, size := protowire.ConsumeVarint(data)
		if size < 0 {
			return nil, false
		}
		numbers, data = append(numbers, number), data[size:]
	}
	return numbers, true
}

// GrantedPage is a page that may be answered, of these partitions and keys. Stop is nil if there is no upper end.
type GrantedPage[R Held] struct {
	Partitions  []Stamped[R]
	Start, Stop []byte
	Entries     int
	KeyForm     controlv1.KeyForm
	Form        controlv1.ValueForm
}

// AdmitPage says whether a page may be answered, and by what; else why it is Python's.
func (s *Snapshot[R]) AdmitPage(page *Page, now int64) (*GrantedPage[R], controlv1.ServingObstacle) {
	store, obstacle := s.store(&page.Terms)
	if store == nil {
		return nil, obstacle
	}
	granted := &GrantedPage[R]{KeyForm: store.keyForm, Form: store.shown(&page.Terms), Entries: page.Entries()}
	if granted.Form == controlv1.ValueForm_VALUE_FORM_UNSPECIFIED {
		return nil, value
	}
	if !page.Raw && store.keyForm == controlv1.KeyForm_KEY_FORM_UNSPECIFIED {
		return nil, keyObstacle
	}
	var isRead bool
	if granted.Start, granted.Stop, isRead = page.keys(store.keyForm); !isRead {
		return nil, keyObstacle
	}
	if len(page.partitions) == 0 || store.isGlobal && page.areSeveral {
		return nil, partition
	}
	granted.Partitions = make([]Stamped[R], len(page.partitions))
	for at, number := range page.partitions {
		if number >= uint64(len(store.partitions)) || slices.Contains(page.partitions[:at], number) {
			return nil, partition
		}
		if obstacle := store.stamp(uint32(number), &page.Terms, now, &granted.Partitions[at]); obstacle != none {
			return nil, obstacle
		}
	}
	return granted, none
}

// keys returns the range that is left to read; not if Python has to say what it is.
func (p *Page) keys(form controlv1.KeyForm) (start, stop []byte, isRead bool) {
	start, stop, isRead = p.asked(form)
	if !isRead || len(p.token) == 0 {
		return start, stop, isRead
	}
	last, isRead := p.last()
	if !isRead {
		return nil, nil, false
	}
	if p.Reverse {
		if stop == nil || bytes.Compare(last, stop) < 0 {
			stop = last
		}
	} else if after := following(last); bytes.Compare(after, start) > 0 {
		start = after
	}
	return start, stop, true
}

// asked returns the range that the request is of.
func (p *Page) asked(form controlv1.KeyForm) (start, stop []byte, isRead bool) {
	for _, bound := range []*key{p.from, p.to, p.prefix} {
		// Numbers are not in the order of their bytes.
		if bound != nil && bound.isText && form != controlv1.KeyForm_KEY_FORM_TEXT {
			return nil, nil, false
		}
	}
	if p.prefix != nil {
		return p.prefix.bytes, keys.After(p.prefix.bytes), p.from == nil && p.to == nil
	}
	if p.from != nil {
		start = p.from.bytes
	}
	if p.to != nil {
		if bytes.Compare(start, p.to.bytes) > 0 {
			return nil, nil, false // Python refuses it
		}
		stop = following(p.to.bytes)
	}
	return start, stop, true
}

// following returns the lowest key above another.
func following(other []byte) []byte { return append(slices.Clip(other), 0) }

// last returns the last key that the request's token says was returned.
func (p *Page) last() ([]byte, bool) {
	data, err := base64.URLEncoding.Strict().DecodeString(string(p.token))
	if err != nil || bytes.ContainsAny(p.token, "\r\n") { // which the decoder passes over
		return nil, false
	}
	last := []byte{} // the empty key, which is one
	var fingerprint uint64
	var fields seen
	for len(data) > 0 {
		found, rest, isRead := next(data)
		if !isRead || !fields.isNew(found.number) {
			return nil, false
		}
		data = rest
		switch {
		case found.number == tokenLastKey && found.isBytes:
			last = found.bytes
		case found.number == tokenFingerprint && !found.isBytes:
			fingerprint = found.varint
		default:
			return nil, false // of a later format
		}
	}
	return last, fingerprint == uint64(p.fingerprint())
}

// Token returns the token of the page that follows a key.
func (p *Page) Token(last []byte) string {
	var data []byte
	if len(last) > 0 {
		data = protowire.AppendBytes(protowire.AppendTag(data, tokenLastKey, protowire.BytesType), last)
	}
	if fingerprint := p.fingerprint(); fingerprint != 0 {
		data = protowire.AppendVarint(protowire.AppendTag(data, tokenFingerprint, protowire.VarintType), uint64(fingerprint))
	}
	return base64.URLEncoding.EncodeToString(data)
}

// fingerprint returns a checksum of what must be equal on every page of a scan: those fields, as they are serialized.
func (p *Page) fingerprint() uint32 {
	identity := []byte(scanName)
	if len(p.Store) > 0 {
		identity = protowire.AppendBytes(protowire.AppendTag(identity, scanStore, protowire.BytesType), p.Store)
	}
	for _, bound := range []struct {
		number protowire.Number
		key    *key
	}{{scanFrom, p.from}, {scanTo, p.to}, {scanPrefix, p.prefix}} {
		if bound.key != nil {
			identity = protowire.AppendBytes(protowire.AppendTag(identity, bound.number, protowire.BytesType), bound.key.serialize())
		}
	}
	if p.Reverse {
		identity = protowire.AppendVarint(protowire.AppendTag(identity, scanReverse, protowire.VarintType), 1)
	}
	if p.Exact {
		identity = protowire.AppendVarint(protowire.AppendTag(identity, scanExact, protowire.VarintType), 1)
	}
	return crc32.ChecksumIEEE(identity)
}

func (k *key) serialize() []byte {
	number := protowire.Number(keyRaw)
	if k.isText {
		number = keyText
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), k.bytes)
}

// AppendKey appends a serialized key as a statehouse.v1.Key: as text in its form, or raw if it is none.
func AppendKey(to []byte, form controlv1.KeyForm, raw bool, data []byte) []byte {
	if !raw {
		switch {
		case form == controlv1.KeyForm_KEY_FORM_TEXT && utf8.Valid(data):
			return protowire.AppendBytes(protowire.AppendTag(to, keyText, protowire.BytesType), data)
		case form == controlv1.KeyForm_KEY_FORM_LONG && len(data) == 8:
			var buffer [20]byte
			text := strconv.AppendInt(buffer[:0], int64(binary.BigEndian.Uint64(data)), 10)
			return protowire.AppendBytes(protowire.AppendTag(to, keyText, protowire.BytesType), text)
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(to, keyRaw, protowire.BytesType), data)
}
