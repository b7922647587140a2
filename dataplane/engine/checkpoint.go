package engine

import (
	"errors"
	"os"
	"path/filepath"
)

// Checkpoint makes what is in files a checkpoint in a directory of its own, which must not be there, and returns the state
// that goes with it. The files are linked, so nothing waits; reads and writes go on.
//
// Errors are ErrClosed, or of type *Fault.
func (d *Database) Checkpoint(path string) ([]byte, error) {
	if err := d.begin(); err != nil {
		return nil, err
	}
	defer d.end()
	if d.budget > 0 {
		return nil, &Fault{Refused, d.path, errors.New("its entries are in no files")}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, FaultOfDisk(path, err)
	}
	if err := d.pebble.Checkpoint(path); err != nil {
		return nil, FaultOfDisk(path, err)
	}
	return ReadClosed(path)
}

// Adopt has a directory of files take a database's place. `changed` gets the state that is in them, and returns the one that
// is to be there. Nobody has either of them open. After a crash one of them is there, and whole.
//
// An error is of type *Fault, or of `changed`.
func Adopt(fetched, path string, resources *Resources, changed func(state []byte) ([]byte, error)) error {
	opened, err := Open(fetched, resources, 1)
	if err != nil {
		return err
	}
	state, err := changed(opened.State())
	if err == nil {
		err = opened.Batch(0).Commit(state)
	}
	if err := errors.Join(err, opened.Close()); err != nil {
		return err
	}
	if err := synced(fetched); err != nil {
		return FaultOfDisk(fetched, err)
	}
	if err := os.RemoveAll(path); err != nil {
		return FaultOfDisk(path, err)
	}
	if err := os.Rename(fetched, path); err != nil {
		return FaultOfDisk(path, err)
	}
	if err := synced(filepath.Dir(path)); err != nil {
		return FaultOfDisk(path, err)
	}
	return nil
}

// synced writes a directory to the disk.
func synced(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
