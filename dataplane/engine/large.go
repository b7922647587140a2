package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// A batch of so many bytes becomes a file at once, in place of a memtable that becomes one: most of a restore is such.
	leastLargeBytes = 1 << 20
	// The buffer of a larger one isn't kept for the next.
	mostKeptBytes = 32 << 20
	// Pebble removes files of such names at the next opening.
	entriesFile = "temporary.000001.dbtmp"
	stateFile   = "temporary.000002.dbtmp"

	writtenBytes = 256 << 10
	headBytes    = 8
)

// isLarge says whether a batch is to become a file of its own. Dropped segments are for Pebble's own order of writes.
func (b *Batch) isLarge() bool {
	d := b.database
	return d.budget == 0 && len(b.dropped) == 0 && b.batch.Len() >= max(d.memtable/2, leastLargeBytes)
}

// writeFiles has Pebble take a batch, and the state, as two files. It shows both or none, also after a crash. Nothing may be
// in the memtable then, as Pebble would wait for it without an end if the disk is full.
//
// The state has its own file: it is written again and again, and would have the entries merged each time.
func (d *Database) writeFiles(batch *pebble.Batch, state []byte) error {
	if d.inMemtable {
		if err := d.flush(); err != nil {
			return err
		}
		d.inMemtable = false
	}
	entries, err := sorted(batch)
	if err != nil {
		return err
	}
	paths := []string{filepath.Join(d.path, stateFile), filepath.Join(d.path, entriesFile)}
	err = d.writeFile(paths[0], func(file *sstable.Writer) error { return file.Set([]byte(stateKey), state) })
	if err == nil {
		err = d.writeFile(paths[1], func(file *sstable.Writer) error { return writeEntries(file, batch.Repr(), entries) })
	}
	if err == nil {
		err = d.pebble.Ingest(context.Background(), paths)
	}
	if err != nil {
		for _, path := range paths {
			_ = d.options.FS.Remove(path) // the next opening does it, too
		}
		return err
	}
	d.count.add(batch.Repr(), entries)
	return nil
}

// count is how many entries there are, as long as nobody has to look: each file has all of its keys behind those that were
// there before. So it is of most stores that a restore writes in one go.
type count struct {
	isKnown bool
	entries int64
	last    []byte
}

// Counted returns how many entries there are, and whether that is known. It is the writer's to ask.
func (d *Database) Counted() (int64, bool) { return d.count.entries, d.count.isKnown }

func (c *count) add(data []byte, entries []entry) {
	if !c.isKnown || len(entries) == 0 {
		return
	}
	if c.isKnown = c.last == nil || bytes.Compare(c.last, entries[0].key(data)) < 0; !c.isKnown {
		return
	}
	for _, each := range entries {
		if !each.isDeleted {
			c.entries++
		}
	}
	c.last = bytes.Clone(entries[len(entries)-1].key(data))
}

// writeFile makes a file of entries.
func (d *Database) writeFile(path string, write func(*sstable.Writer) error) error {
	file, err := d.options.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// The disk gets it bit by bit, so that reads meanwhile don't wait for all of it.
	synced := vfs.NewSyncingFile(file, vfs.SyncingFileOptions{BytesPerSync: d.options.BytesPerSync})
	// As for the first level: in a file for the last one tombstones say nothing.
	options := d.options.MakeWriterOptions(0, d.pebble.TableFormat())
	table := sstable.NewWriter(&writable{synced, bufio.NewWriterSize(synced, writtenBytes)}, options)
	return errors.Join(write(table), table.Close())
}

// writable is a file as tables are written to it.
type writable struct {
	file vfs.File
	*bufio.Writer
}

func (w *writable) Write(data []byte) error {
	_, err := w.Writer.Write(data)
	return err
}

// Finish writes what is left, to the disk.
func (w *writable) Finish() error {
	err := w.Flush()
	if err == nil {
		err = w.file.Sync()
	}
	return errors.Join(err, w.file.Close())
}

// Abort closes the file, which is of no use.
func (w *writable) Abort() { _ = w.file.Close() }

// entry is where a batch has one. Its head is what follows the bytes that all keys begin with.
type entry struct {
	head      uint64
	at        uint32 // of its key
	keyBytes  uint32
	isDeleted bool
}

func (e entry) key(data []byte) []byte { return data[e.at : e.at+e.keyBytes] }

func (e entry) value(data []byte) []byte {
	_, value, _ := batchrepr.DecodeStr(data[e.at+e.keyBytes:])
	return value
}

// sorted returns the last entry of each key, in the order of the keys.
func sorted(batch *pebble.Batch) ([]entry, error) {
	data, entries := batch.Repr(), make([]entry, 0, batch.Count())
	var first []byte
	for left, common := batch.Reader(), 0; ; {
		at := len(data) - len(left)
		kind, key, _, more, err := left.Next()
		if err != nil {
			return nil, err
		}
		if !more {
			return inOrder(data, entries, common), nil
		}
		if len(entries) == 0 {
			first, common = key, len(key)
		}
		common = commonBytes(first[:common], key)
		at++ // the kind
		_, lengthBytes := binary.Uvarint(data[at:])
		entries = append(entries, entry{
			at: uint32(at + lengthBytes), keyBytes: uint32(len(key)), isDeleted: kind == pebble.InternalKeyKindDelete,
		})
	}
}

// inOrder sorts entries whose keys begin with so many common bytes, and leaves the last one of each key.
func inOrder(data []byte, entries []entry, common int) []entry {
	for at := range entries {
		entries[at].head = headOf(entries[at].key(data)[common:])
	}
	slices.SortFunc(entries, func(one, other entry) int {
		if one.head != other.head {
			return cmp.Compare(one.head, other.head)
		}
		if order := bytes.Compare(one.key(data)[common:], other.key(data)[common:]); order != 0 {
			return order
		}
		return cmp.Compare(other.at, one.at)
	})
	return slices.CompactFunc(entries, func(one, other entry) bool {
		return one.head == other.head && bytes.Equal(one.key(data), other.key(data))
	})
}

// headOf returns the first bytes of a key as a number: keys have the order of their heads, if these differ.
func headOf(key []byte) uint64 {
	if len(key) >= headBytes {
		return binary.BigEndian.Uint64(key)
	}
	var filled [headBytes]byte
	copy(filled[:], key)
	return binary.BigEndian.Uint64(filled[:])
}

// commonBytes returns how many bytes two keys have in common at their beginning.
func commonBytes(one, other []byte) int {
	common := min(len(one), len(other))
	for at := range common {
		if one[at] != other[at] {
			return at
		}
	}
	return common
}

func writeEntries(file *sstable.Writer, data []byte, entries []entry) error {
	for _, each := range entries {
		var err error
		if each.isDeleted {
			err = file.Delete(each.key(data))
		} else {
			err = file.Set(each.key(data), each.value(data))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
