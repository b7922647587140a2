// Package files moves the files of stores between nodes. Which ones, from whom and whether at all is not decided here, and
// nothing is known of what is in them.
package files

import (
	"context"
	"encoding/hex"
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
	mostOfPiece  = 32 << 10
	leastOfPiece = 4 << 10
	// LockFile is no part of a checkpoint: who opens one makes it.
	LockFile = "LOCK"
	// Ends the name of a file that is not whole yet. Its checksum stands before: what is there is surely of it.
	partSuffix = ".part"
)

// PeerError says that another node can't be read from, or not to the end.
type PeerError struct{ Err error }

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns why.
func (e *PeerError) Unwrap() error { return e.Err }

// ChecksumError says that what has arrived is not what a manifest says.
type ChecksumError struct{ Name string }

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("file %s is not what its manifest says: its bytes have another checksum", e.Name)
}

// added adds a file's bytes to a checksum, and returns how many there are.
func added(ctx context.Context, sum hash.Hash, path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return addedOf(ctx, sum, file)
}

func addedOf(ctx context.Context, sum hash.Hash, file io.Reader) (int64, error) {
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

// Send has a file's bytes sent, from an offset on, at most so many together. What is sent belongs to the receiver.
func Send(ctx context.Context, path string, offset uint64, most int, limit *Limit, send func(mem.Buffer) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(int64(offset), io.SeekStart); err != nil {
		return err
	}
	var moved rests.Bytes
	for pool := mem.DefaultBufferPool(); ; {
		piece := pool.Get(min(limit.Piece(), most))
		read, err := io.ReadFull(file, *piece)
		if read == 0 {
			pool.Put(piece)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := limit.Wait(ctx, read); err != nil {
			pool.Put(piece)
			return err
		}
		*piece = (*piece)[:read]
		if err := send(mem.NewBuffer(piece, pool)); err != nil {
			return err
		}
		moved.After(read)
	}
}

// Stream is a file's bytes, as they arrive. They are gone when `take` has returned. io.EOF comes after the last; an error of
// `take` comes back as it is.
type Stream interface {
	Receive(take func([]byte) error) error
	Close()
}

// Open asks for a file's bytes from an offset on.
type Open func(ctx context.Context, offset uint64) (Stream, error)

// Fetch returns once a file is in a directory, whole and on the disk, and how much of it was there already: of what was
// fetched before only the rest is asked for. `silence` is for how long nothing may arrive.
//
// Errors are of type *PeerError or *ChecksumError, or the system's.
func Fetch(
	ctx context.Context, open Open, file *statehousev1.StoredFile, directory string, silence time.Duration, limit *Limit,
) (found uint64, err error) {
	whole := filepath.Join(directory, file.Name)
	if isThere, err := isWhole(ctx, whole, file); isThere || err != nil {
		return file.Size, err
	}
	path := whole + "." + hex.EncodeToString(file.Checksum) + partSuffix
	part, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return 0, err
	}
	sum := xxhash.New()
	before, err := addedOf(ctx, sum, part)
	if err == nil && uint64(before) < file.Size {
		err = received(ctx, open, uint64(before), file, part, sum, silence, limit)
	}
	if err == nil && (uint64(before) > file.Size || string(sum.Sum(nil)) != string(file.Checksum)) {
		err = &ChecksumError{file.Name}
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
func isWhole(ctx context.Context, path string, file *statehousev1.StoredFile) (bool, error) {
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if uint64(there.Size()) == file.Size {
		sum := xxhash.New()
		if _, err := added(ctx, sum, path); err != nil {
			return false, err
		}
		if string(sum.Sum(nil)) == string(file.Checksum) {
			return true, nil
		}
	}
	return false, os.Remove(path)
}

// received writes what arrives, and adds it to the checksum.
func received(
	ctx context.Context, open Open, offset uint64, file *statehousev1.StoredFile, part io.Writer, sum hash.Hash,
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
		case errors.Is(err, io.EOF) && at == file.Size:
			return nil
		case errors.Is(err, io.EOF):
			return &PeerError{fmt.Errorf("file %s ended after %d of %d bytes", file.Name, at, file.Size)}
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

// peerError returns why another node can't be read from.
func peerError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &PeerError{err}
}
