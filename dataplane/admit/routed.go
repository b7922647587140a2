package admit

import (
	"google.golang.org/protobuf/encoding/protowire"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// IsRouted says whether a page is one that a router may have nodes answer as it stands: it has no bounds but one on the
// batch, which it doesn't name, no router has passed it on, and the keys that it is of can be read by their form.
func (p *Page) IsRouted(form controlv1.KeyForm) bool {
	isBounded := p.activeOnly || p.bounds != 0 || p.atLeast != nil || p.moment.asked == exactly
	if isBounded || p.epoch != 0 || p.Forwarded || p.WithKeys || p.areSeveral {
		return false
	}
	start, stop, _, isRead := p.asked(form)
	if isRead = isRead && (form == controlv1.KeyForm_KEY_FORM_TEXT || !p.hasText()); isRead {
		var walk Moment
		_, _, walk, isRead = p.left(p, start, stop)
		isRead = isRead && !walk.IsSet
	}
	return isRead
}

// AsksForBatch says whether all parts of the page are to be of one batch.
func (p *Page) AsksForBatch() bool { return p.moment.asked != asIs }

// Partition returns the only partition that a page is of, if it names one.
func (p *Page) Partition() (number uint64, isNamed bool) {
	if len(p.partitions) == 0 {
		return 0, false
	}
	return p.partitions[0], true
}

// Most returns how many entries it may have.
func (p *Page) Most() int { return p.entries() }

// AppendPartitions has a serialized ScanRequest that names none be of these, as routers write it.
func AppendPartitions(to []byte, partitions []uint32) []byte {
	if len(partitions) == 1 {
		return protowire.AppendVarint(protowire.AppendTag(to, scanPartition, protowire.VarintType), uint64(partitions[0]))
	}
	size := 0
	for _, each := range partitions {
		size += protowire.SizeVarint(uint64(each))
	}
	to = protowire.AppendVarint(protowire.AppendTag(to, scanPartitions, protowire.BytesType), uint64(size))
	for _, each := range partitions {
		to = protowire.AppendVarint(to, uint64(each))
	}
	return to
}
