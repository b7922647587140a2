package admit

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	"statehouse-dataplane/keys"
	"statehouse-dataplane/wire"
)

// Page is a request for a page: a statehouse.v1.ScanRequest that has nothing else than what is here.
type Page struct {
	Terms
	Paging

	from, to, prefix *key
	partitions       []uint64
	areSeveral       bool // in the field for several
}

// Fields of ScanRequest.
const (
	scanStore, scanFrom, scanTo, scanPrefix, scanReverse, scanSize, scanToken = 1, 2, 3, 4, 5, 6, 7

	scanFreshness, scanRaw, scanPartition, scanExact, scanForwarding, scanPartitions = 8, 9, 10, 14, 15, 16
)

// ReadPage reads a serialized ScanRequest; not if it has anything else than what Page has, or anything twice.
func ReadPage(request []byte) (*Page, bool) {
	page := &Page{}
	var fields seen
	for len(request) > 0 {
		found, rest, isRead := next(request)
		if !isRead || !fields.isNew(found.Number) || !page.take(found) {
			return nil, false
		}
		request = rest
	}
	return page, utf8.Valid(page.Store)
}

func (p *Page) take(found wire.Field) bool {
	isRead := found.IsBytes()
	switch found.Number {
	case scanStore:
		p.Store = found.Bytes
	case scanFrom, scanTo, scanPrefix:
		var read key
		if read, isRead = readKey(found.Bytes); !found.IsBytes() {
			return false
		}
		*map[protowire.Number]**key{scanFrom: &p.from, scanTo: &p.to, scanPrefix: &p.prefix}[found.Number] = &read
	case scanFreshness:
		isRead = found.IsBytes() && p.readFreshness(found.Bytes)
	case scanForwarding:
		isRead = found.IsBytes() && p.readForwarding(found.Bytes)
	case scanPartitions:
		if isRead = found.IsBytes() && len(p.partitions) == 0; isRead {
			p.partitions, isRead = packed(found.Bytes)
			p.areSeveral = len(p.partitions) > 0
		}
	case scanPartition:
		isRead = isNumber(found) && len(p.partitions) == 0
		p.partitions = []uint64{found.Varint}
	case scanSize:
		isRead = p.takeSize(found)
	case scanToken:
		isRead = p.takeToken(found)
	case scanReverse:
		isRead = p.takeReverse(found)
	case scanRaw, scanExact:
		*map[protowire.Number]*bool{scanRaw: &p.Raw, scanExact: &p.Exact}[found.Number] = true
		isRead = !found.IsBytes() && found.Varint == 1
	default:
		return false
	}
	return isRead
}

// isNumber says whether a field has a number of 32 bits.
func isNumber(found wire.Field) bool { return !found.IsBytes() && found.Varint <= math.MaxUint32 }

// HasPrefix says whether it is of the keys with a prefix.
func (p *Page) HasPrefix() bool { return p.prefix != nil }

// HasBounds says whether it has a first or a last key.
func (p *Page) HasBounds() bool { return p.from != nil || p.to != nil }

// packed returns the numbers of a packed field.
func packed(data []byte) ([]uint64, bool) {
	var numbers []uint64
	for len(data) > 0 {
		number, size := protowire.ConsumeVarint(data)
		if size < 0 || number > math.MaxUint32 {
			return nil, false
		}
		numbers, data = append(numbers, number), data[size:]
	}
	return numbers, true
}

// GrantedPage is a page that may be answered, of these partitions and keys. Stop is nil if there is no upper end. Gaps are
// left out, each from its first bytes to below its second.
type GrantedPage[R Held] struct {
	Partitions  []Stamped[R]
	Start, Stop []byte
	Gaps        [][2][]byte
	Entries     int
	KeyForm     controlv1.KeyForm
	Form        controlv1.ValueForm
}

// AdmitPage says whether a page may be answered, and by what; else why it is Python's.
func (s *Snapshot[R]) AdmitPage(page *Page, now int64) (*GrantedPage[R], controlv1.ServingObstacle) {
	store, obstacle := s.store(&page.Terms, keyValue)
	if store == nil {
		return nil, obstacle
	}
	granted := &GrantedPage[R]{KeyForm: store.keyForm, Form: store.shown(&page.Terms), Entries: page.entries()}
	if !page.Raw && store.keyForm == controlv1.KeyForm_KEY_FORM_UNSPECIFIED {
		return nil, keyObstacle
	}
	start, stop, gaps, isRead := page.asked(store.keyForm)
	if !isRead {
		return nil, keyObstacle
	}
	granted.Gaps = gaps
	page.Version = s.version
	var walk Moment
	if granted.Start, granted.Stop, walk, isRead = page.left(page, start, stop); !isRead {
		return nil, keyObstacle
	}
	if granted.Form == controlv1.ValueForm_VALUE_FORM_UNSPECIFIED {
		return nil, value
	}
	if len(page.partitions) == 0 || store.isGlobal && page.areSeveral {
		return nil, partition
	}
	granted.Partitions, obstacle = store.stamps(page.partitions, &page.Terms, page.moment.within(walk), now)
	return granted, obstacle
}

// stamps says whether partitions may answer, and with which stamps.
func (s *Store[R]) stamps(numbers []uint64, terms *Terms, bound momentBound, now int64) ([]Stamped[R], controlv1.ServingObstacle) {
	stamped := make([]Stamped[R], len(numbers))
	for at, number := range numbers {
		if number >= uint64(len(s.partitions)) || slices.Contains(numbers[:at], number) {
			return nil, partition
		}
		if obstacle := s.stamp(uint32(number), terms, now, &stamped[at]); obstacle != none {
			return nil, obstacle
		}
	}
	if bound.asked != asIs && !s.choose(numbers, terms, &bound, stamped) {
		return nil, moment
	}
	return stamped, none
}

// asked returns the range that the request is of; not if Python has to say what it is, or refuses it.
func (p *Page) asked(form controlv1.KeyForm) (start, stop []byte, gaps [][2][]byte, isRead bool) {
	if p.hasText() && form != controlv1.KeyForm_KEY_FORM_TEXT {
		return p.numbers(form)
	}
	if p.prefix != nil {
		return p.prefix.bytes, keys.After(p.prefix.bytes), nil, p.from == nil && p.to == nil
	}
	if p.from != nil {
		start = p.from.bytes
	}
	if p.to != nil {
		if bytes.Compare(start, p.to.bytes) > 0 {
			return nil, nil, nil, false
		}
		stop = keys.Following(p.to.bytes)
	}
	return start, stop, nil, true
}

// hasText says whether a key that bounds the range is text.
func (p *Page) hasText() bool {
	for _, bound := range []*key{p.from, p.to, p.prefix} {
		if bound != nil && bound.isText {
			return true
		}
	}
	return false
}

// numbers returns the range from one number to another. In the order of bytes those below zero are behind the others.
func (p *Page) numbers(form controlv1.KeyForm) (start, stop []byte, gaps [][2][]byte, isRead bool) {
	bounds := [2]int64{math.MinInt64, math.MaxInt64}
	for at, bound := range []*key{p.from, p.to} {
		if bound == nil {
			continue
		}
		var buffer [8]byte
		serialized, isRead := bound.serialized(form, &buffer)
		if !isRead || !bound.isText {
			return nil, nil, nil, false
		}
		bounds[at] = int64(binary.BigEndian.Uint64(serialized))
	}
	first, last := bounds[0], bounds[1]
	if first > last || p.prefix != nil {
		return nil, nil, nil, false
	}
	number := func(value int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(value)) }
	start, stop = number(first), keys.Following(number(last))
	if first < 0 && last >= 0 {
		gaps = [][2][]byte{{stop, start}}
		start, stop = number(0), keys.Following(number(-1))
	}
	return start, stop, gaps, true
}

// Token returns the token of the page that follows a key, in a walk that is of a batch if one is set.
func (p *Page) Token(last []byte, shown Moment) string { return p.tokenFor(p, last, shown) }

func (p *Page) identity() []byte {
	identity := appendStore([]byte("ScanRequest"), p.Store)
	for _, bound := range []struct {
		number protowire.Number
		key    *key
	}{{scanFrom, p.from}, {scanTo, p.to}, {scanPrefix, p.prefix}} {
		if bound.key != nil {
			identity = protowire.AppendBytes(protowire.AppendTag(identity, bound.number, protowire.BytesType), bound.key.serialize())
		}
	}
	return appendSet(appendSet(identity, scanReverse, p.Reverse), scanExact, p.Exact)
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
