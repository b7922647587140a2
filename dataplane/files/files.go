// Package files moves the files of stores between nodes. Which ones, from whom and whether at all is not decided here, and
// nothing is known of what is in them.
package files

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/mem"

	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
	"statehouse-dataplane/rests"
)

const (
	// Lookups wait for what a transfer does between two of its turns. A buffer of this size is one of gRPC's pool, which
	// clears the whole of one that it gives.
	mostOfPiece   = 32 << 10
	leastOfPiece  = 4 << 10
	checksumBytes = 8
	// LockFile is no part of a checkpoint: who opens one makes it.
	LockFile = "LOCK"
	// Ends the name of a file that is not whole yet. Its size and time stand before: so what is there is known again.
	partSuffix = ".part"
)

// PeerError says that another node can't be read from, or not to the end.
type PeerError struct{ Err error }

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns why.
func (e *PeerError) Unwrap() error { return e.Err }

// ChecksumError says that what has arrived is not what another node has.
type ChecksumError struct{ Name string }

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("file %s is not what its node has: its bytes have another checksum", e.Name)
}

// Described returns the files of a directory, which is a checkpoint of a store. None is read.
func Described(directory string) ([]*statehousev1.StoredFile, error) {
	found, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	described := make([]*statehousev1.StoredFile, 0, len(found))
	for _, each := range found {
		if each.Name() == LockFile {
			continue
		}
		info, err := each.Info()
		if err != nil {
			return nil, err
		}
		described = append(described, &statehousev1.StoredFile{
			Name: each.Name(), Size: uint64(info.Size()), ChangedNs: info.ModTime().UnixNano(),
		})
	}
	return described, nil
}

// added adds bytes to a checksum, and returns how many there are.
func added(ctx context.Context, sum io.Writer, file io.Reader) (int64, error) {
	buffer := mem.DefaultBufferPool().Get(mostOfPiece)
	defer mem.DefaultBufferPool().Put(buffer)
	var moved rests.Bytes
	for size := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return size, err
		}
		read, err := file.Read(*buffer)
		_, _ = sum.Write((*buffer)[:read]) // it never fails
		size += int64(read)
		moved.After(read)
		if errors.Is(err, io.EOF) {
			return size, nil
		} else if err != nil {
			return size, err
		}
	}
}

// Send has a file's bytes sent, from an offset on, at most so many together. What is sent belongs to the receiver. It returns
// the checksum of the whole file: what is before the offset is read, too.
//
// A checksum is there for what disks and networks damage. Whom files come from is for TLS to say, and SHA-256 took as long as
// all else that is done with a byte.
func Send(
	ctx context.Context, path string, offset uint64, most int, limit *Limit, send func(mem.Buffer) error,
) (checksum []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	sum := xxhash.New()
	if _, err := added(ctx, sum, io.LimitReader(file, int64(offset))); err != nil {
		return nil, err
	}
	var moved rests.Bytes
	for pool := mem.DefaultBufferPool(); ; {
		piece := pool.Get(min(limit.Piece(), most))
		read, err := io.ReadFull(file, *piece)
		if read == 0 {
			pool.Put(piece)
			if errors.Is(err, io.EOF) {
				return sum.Sum(nil), nil
			}
			return nil, err
		}
		if err := limit.Wait(ctx, read); err != nil {
			pool.Put(piece)
			return nil, err
		}
		*piece = (*piece)[:read]
		_, _ = sum.Write(*piece) // it never fails
		if err := send(mem.NewBuffer(piece, pool)); err != nil {
			return nil, err
		}
		moved.After(read)
	}
}

// Stream is a file's bytes, as they arrive. They are gone when `take` has returned. io.EOF comes after the last; an error of
// `take` comes back as it is. Then there is the checksum of the whole file, if it has arrived.
type Stream interface {
	Receive(take func([]byte) error) error
	Checksum() []byte
	Close()
}

// Open asks for a file's bytes from an offset on.
type Open func(ctx context.Context, offset uint64) (Stream, error)

// Fetch returns once a file is in a directory, whole and on the disk, and how much of it was there already: of what was
// fetched before only the rest is asked for. `silence` is for how long nothing may arrive. The directory has files of one node
// only, and a whole one has the time that its node says: so it is known again without being read.
//
// Errors are of type *PeerError or *ChecksumError, or the system's.
func Fetch(
	ctx context.Context, open Open, file *statehousev1.StoredFile, directory string, silence time.Duration, limit *Limit,
) (found uint64, err error) {
	whole := filepath.Join(directory, file.Name)
	if isThere, err := isWhole(whole, file); isThere || err != nil {
		return file.Size, err
	}
	path := fmt.Sprintf("%s.%d.%d%s", whole, file.Size, file.ChangedNs, partSuffix)
	part, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return 0, err
	}
	sum := xxhash.New()
	before, err := added(ctx, sum, part)
	switch {
	case err != nil:
	case uint64(before) > file.Size:
		err = &ChecksumError{file.Name}
	case file.Size > 0:
		err = received(ctx, open, uint64(before), file, part, sum, silence, limit)
	}
	if err == nil {
		err = os.Chtimes(path, time.Time{}, time.Unix(0, file.ChangedNs))
	}
	if err == nil {
		err = part.Sync()
	}
	if closing := part.Close(); err == nil {
		err = closing
	}
	if err == nil {
		return uint64(before), os.Rename(path, whole)
	}
	var differs *ChecksumError
	if errors.As(err, &differs) {
		err = errors.Join(err, os.Remove(path)) // the next try begins anew
	}
	return uint64(before), err
}

// isWhole says whether a file is there as it should be. Another of its name is removed.
func isWhole(path string, file *statehousev1.StoredFile) (bool, error) {
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if uint64(there.Size()) == file.Size && there.ModTime().UnixNano() == file.ChangedNs {
		return true, nil
	}
	return false, os.Remove(path)
}

// received writes what arrives. `sum` has what is there before, and is to be the other node's at the end.
func received(
	ctx context.Context, open Open, offset uint64, file *statehousev1.StoredFile, part io.Writer, sum hash.Hash64,
	silence time.Duration, limit *Limit,
) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	silent := time.AfterFunc(silence, func() { stop(fmt.Errorf("nothing has arrived for %v", silence)) })
	defer silent.Stop()
	stream, err := open(ctx, offset)
	if err != nil {
		return peerError(ctx, err)
	}
	defer stream.Close()
	at := offset
	var failed error
	take := func(data []byte) error {
		if at += uint64(len(data)); at > file.Size {
			failed = &ChecksumError{file.Name}
		} else {
			_, _ = sum.Write(data) // it never fails
			_, failed = part.Write(data)
		}
		return failed
	}
	var moved rests.Bytes
	for {
		before := at
		err := stream.Receive(take)
		switch {
		case failed != nil:
			return failed
		case errors.Is(err, io.EOF):
			return ended(file, at, sum, stream.Checksum())
		case err != nil:
			return peerError(ctx, err)
		}
		silent.Stop() // the limit's pause is no silence
		if err := limit.Wait(ctx, int(at-before)); err != nil {
			return peerError(ctx, err)
		}
		moved.After(int(at - before))
		silent.Reset(silence)
	}
}

// ended says whether all of a file has arrived as its node has it.
func ended(file *statehousev1.StoredFile, size uint64, sum hash.Hash64, checksum []byte) error {
	switch {
	case size < file.Size:
		return &PeerError{fmt.Errorf("file %s ended after %d of %d bytes", file.Name, size, file.Size)}
	case len(checksum) != checksumBytes:
		return &PeerError{fmt.Errorf("file %s came without its checksum", file.Name)}
	case sum.Sum64() != binary.BigEndian.Uint64(checksum):
		return &ChecksumError{file.Name}
	}
	return nil
}

// peerError returns why another node can't be read from.
func peerError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &PeerError{err}
}
