package engine

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Kept is the entries as they were at one moment, for as long as somebody wants them. The database may be closed before that:
// then it can't be read any more.
type Kept struct {
	database *Database
	snapshot *pebble.Snapshot
	segments []int64
	holders  int
}

// kept are those of a database that have holders.
type kept struct {
	mutex sync.Mutex
	all   map[*Kept]struct{}
}

// Keep keeps the entries as they are now, until `Drop`. Nobody writes meanwhile. The error is ErrClosed.
func (d *Database) Keep() (*Kept, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	k := &Kept{d, d.pebble.NewSnapshot(), d.Segments(), 1}
	d.kept.mutex.Lock()
	defer d.kept.mutex.Unlock()
	if d.kept.all == nil {
		d.kept.all = map[*Kept]struct{}{}
	}
	d.kept.all[k] = struct{}{}
	return k, nil
}

// View opens a view of them. It may stay open for longer than they are kept. The error is ErrClosed.
func (k *Kept) View() (*View, error) {
	if err := k.database.begin(); err != nil {
		return nil, err
	}
	of := &k.database.kept
	of.mutex.Lock()
	defer of.mutex.Unlock()
	k.holders++
	return &View{k.database, k.snapshot, k, k.segments}, nil
}

// Drop lets them go.
func (k *Kept) Drop() { k.release() }

func (k *Kept) release() {
	of := &k.database.kept
	of.mutex.Lock()
	defer of.mutex.Unlock()
	k.holders--
	if _, isOpen := of.all[k]; k.holders == 0 && isOpen {
		of.close(k)
	}
}

// close is called with the mutex held.
func (k *kept) close(one *Kept) {
	delete(k.all, one)
	_ = one.snapshot.Close() // it fails if it is closed twice
}

// closeAll closes those that are left: Pebble refuses to be closed before. No view of them is open.
func (k *kept) closeAll() {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for one := range k.all {
		k.close(one)
	}
}
