package engine

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
)

// ReadClosed returns the state of a database that no process has open, nil if nothing was ever written. Nothing of it is
// changed.
//
// An error is of type *Fault.
func ReadClosed(path string) ([]byte, error) {
	if mark, err := os.ReadFile(filepath.Join(path, damageMark)); err == nil {
		return nil, &Fault{Damaged, path, errors.New(string(mark))}
	}
	opened, err := pebble.Open(path, &pebble.Options{ReadOnly: true, ErrorIfNotExists: true, Logger: logger{path}})
	if err != nil {
		return nil, faultOf(path, err)
	}
	state, err := stateIn(opened)
	if closing := opened.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return nil, faultOf(path, err)
	}
	return state, nil
}

// stateIn reads what was written with the newest entries.
func stateIn(from pebble.Reader) ([]byte, error) {
	value, closer, err := from.Get([]byte(stateKey))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state := append([]byte(nil), value...)
	return state, closer.Close()
}
