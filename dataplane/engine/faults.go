package engine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// ErrClosed says that the store was closed before the read, or is being closed during it.
var ErrClosed = errors.New("the store is closed")

// Kind says what is to be done about a fault.
type Kind int

// The kinds of faults.
const (
	// Damaged: the content can't be read. The store is to be wiped and restored.
	Damaged Kind = iota + 1
	// Refused: the disk is read-only, or not ours. The content may well be intact.
	Refused
	// Full is Refused for want of space.
	Full
)

// Fault is why a store can't go on. Its task stops.
type Fault struct {
	Kind Kind
	Path string
	Err  error
}

func (f *Fault) Error() string { return fmt.Sprintf("%s: %v", f.Path, f.Err) }

// Unwrap returns what Pebble or the system has reported.
func (f *Fault) Unwrap() error { return f.Err }

// refusals are errors of the system after which the content may well be intact.
var refusals = []error{
	syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN,
	syscall.ENOLCK,
}

// faultOf returns the fault that an error of Pebble's is.
func faultOf(path string, err error) *Fault {
	var known *Fault
	if errors.As(err, &known) {
		return known
	}
	kind := Damaged
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		kind = Full
	case pebble.IsCorruptionError(err):
	default:
		for _, refusal := range refusals {
			if errors.Is(err, refusal) {
				kind = Refused
			}
		}
	}
	return &Fault{kind, path, err}
}

// FaultOfDisk returns the fault that it is if a directory can't be locked, or files can't be linked, moved or copied. That
// says nothing of their content: an earlier opening may still be ending, as long as the disk doesn't answer.
func FaultOfDisk(path string, err error) *Fault {
	fault := faultOf(path, err)
	if fault.Kind == Damaged {
		fault.Kind = Refused
	}
	return fault
}
