package files

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
)

// tableSuffix ends the names of a store's tables. They never change, and no other gets the name of one.
const tableSuffix = ".sst"

// Sums are the checksums of a store's tables: a further checkpoint of it reads only what is new.
type Sums struct {
	mutex  sync.Mutex
	tables map[string]table
}

// table is a table's file as it was when it was read. All links of a file have the same size and time.
type table struct {
	size    int64
	changed time.Time
	sum     []byte
}

// Described returns the files of a directory, which is a checkpoint of the store, with their checksums.
//
// A checksum is there for what disks and networks damage. Whom files come from is for TLS to say, and SHA-256 took as long as
// all else that is done with a byte.
func (s *Sums) Described(ctx context.Context, directory string) ([]*statehousev1.StoredFile, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	described := make([]*statehousev1.StoredFile, 0, len(found))
	tables := map[string]table{}
	for _, each := range found {
		name := each.Name()
		if name == LockFile {
			continue
		}
		info, err := each.Info()
		if err != nil {
			return nil, err
		}
		size, sum := info.Size(), s.of(name, info)
		if sum == nil {
			adding := xxhash.New()
			if size, err = added(ctx, adding, filepath.Join(directory, name)); err != nil {
				return nil, err
			}
			sum = adding.Sum(nil)
		}
		if filepath.Ext(name) == tableSuffix {
			tables[name] = table{size, info.ModTime(), sum}
		}
		described = append(described, &statehousev1.StoredFile{Name: name, Size: uint64(size), Checksum: sum})
	}
	s.tables = tables
	return described, nil
}

// of returns a table's checksum; nil if it isn't known.
func (s *Sums) of(name string, info fs.FileInfo) []byte {
	if known := s.tables[name]; known.size == info.Size() && known.changed.Equal(info.ModTime()) {
		return known.sum
	}
	return nil
}
