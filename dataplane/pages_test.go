package main

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

func pageSnapshot(t testing.TB) *snapshot {
	data, err := proto.Marshal(&controlv1.ExpressSnapshot{
		Nodes:          []*controlv1.ExpressNode{{InstanceId: "a", Address: "a:1"}, {InstanceId: "b", Address: "b:1"}, {InstanceId: "a", Address: "a:1", Role: 2}},
		Stores:         []*controlv1.ExpressStore{{Name: "s", KeyForm: controlv1.KeyForm_KEY_FORM_TEXT, First: []uint32{1, 2, 3}, Pages: true}},
		PageForwarding: []byte("\x7a\x02\x20\x01"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := snapshotIn(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func FuzzPagesAreDecidedOrNotAndEachPartitionIsAskedOnce(f *testing.F) {
	for _, each := range []string{"\x0a\x01s", "\x0a\x01s\x28\x01\x30\x05", "\x0a\x01s\x50\x01", "\x0a\x01s\x12\x03\x0a\x01a\x1a\x03\x12\x01b", "\x0a\x01s\x50\x09"} {
		f.Add([]byte(each))
	}
	s := pageSnapshot(f)
	f.Fuzz(func(t *testing.T, request []byte) {
		before := bytes.Clone(request)
		p := s.decidePage(request)
		if !bytes.Equal(before, request) {
			t.Fatalf("%x was changed", before)
		}
		if p == nil {
			return
		}
		var asked []uint32
		for _, c := range p.calls {
			asked = append(asked, c.partitions...)
			if !bytes.HasPrefix(c.request, request) || !bytes.HasSuffix(c.request, s.PageForwarding) {
				t.Fatalf("%x is asked for %x", c.request, request)
			}
			if sent, isRead := admit.ReadPage(c.request); isRead && !sent.WithKeys {
				t.Fatalf("%x asks for no keys", c.request)
			}
		}
		slices.Sort(asked)
		number, isNamed := p.Partition()
		if isNamed && !slices.Equal(asked, []uint32{uint32(number)}) || !isNamed && !slices.Equal(asked, []uint32{0, 1, 2}) {
			t.Fatalf("%v are asked for %x", asked, request)
		}
	})
}

func FuzzAnswersArePutTogetherInOrderOrLeft(f *testing.F) {
	f.Add([]byte("\x0a\x01A\x0a\x01C\x22\x01a\x22\x01c\x1a\x01x"), []byte("\x0a\x01B\x22\x01b\x12\x01t"), false, 50)
	f.Add([]byte("\x0a\x01C\x0a\x01A\x22\x01c\x22\x01a"), []byte(""), true, 1)
	f.Add([]byte("\x12\x01t"), []byte("\x0a"), false, 0)
	f.Fuzz(func(t *testing.T, first, second []byte, reverse bool, room int) {
		request := []byte("\x0a\x01s\x30\x03")
		if reverse {
			request = append(request, 0x28, 1)
		}
		p := pageSnapshot(t).decidePage(request)
		parts := make([]partial, 2)
		if !parts[0].read(first, p) || !parts[1].read(second, p) {
			return
		}
		var merged partial
		if !merged.readEntries(p.joined(parts, room)) {
			t.Fatal("the page can't be read")
		}
		all := len(parts[0].entries) + len(parts[1].entries)
		if len(merged.entries) > min(all, p.Most()) || len(merged.entries) < all && !merged.hasMore || all > 0 && len(merged.entries) == 0 {
			t.Fatalf("%d of %d entries, more: %v", len(merged.entries), all, merged.hasMore)
		}
	})
}

// readEntries reads a page without the keys of its entries.
func (p *partial) readEntries(data []byte) bool {
	for len(data) > 0 {
		content, rest, ok := contentOf(data[1:])
		if !ok {
			return false
		}
		switch data[0] {
		case entriesTag:
			p.entries = append(p.entries, content)
		case tokenTag:
			p.hasMore = true
		}
		data = rest
	}
	return true
}
