package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/mem"

	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
)

// source is another node that has one file.
type source struct {
	content []byte
	piece   int
	// Breaks off before this offset of the file; -1: never.
	breaksAt int
	// Sends nothing from this offset on; -1: it does.
	silentAt int
	// What it says is its checksum; nil: the right one.
	checksum []byte
	asked    []uint64
}

func (s *source) open(ctx context.Context, offset uint64) (Stream, error) {
	s.asked = append(s.asked, offset)
	return &sending{s, ctx, int(offset)}, nil
}

type sending struct {
	*source
	ctx context.Context
	at  int
}

var errBroken = errors.New("the connection is gone")

func (s *sending) Receive(take func([]byte) error) error {
	if s.silentAt >= 0 && s.at >= s.silentAt {
		<-s.ctx.Done()
		return s.ctx.Err()
	}
	if s.breaksAt >= 0 && s.at >= s.breaksAt {
		return errBroken
	}
	if s.at == len(s.content) {
		return io.EOF
	}
	end := min(s.at+s.piece, len(s.content))
	if s.breaksAt >= 0 {
		end = min(end, s.breaksAt)
	}
	part := s.content[s.at:end]
	s.at = end
	return take(part)
}

func (s *sending) Checksum() []byte {
	if s.checksum == nil {
		return binary.BigEndian.AppendUint64(nil, xxhash.Sum64(s.content))
	}
	return s.checksum
}

func (s *sending) Close() {}

func described(content []byte) *statehousev1.StoredFile {
	return &statehousev1.StoredFile{Name: "000012.sst", Size: uint64(len(content)), ChangedNs: 1_700_000_000_123_456_789}
}

func someBytes(size int) []byte {
	random, content := rand.New(rand.NewPCG(1, 2)), make([]byte, size)
	for at := range content {
		content[at] = byte(random.Uint32())
	}
	return content
}

func fetched(t *testing.T, from *source, file *statehousev1.StoredFile, directory string) (uint64, error) {
	t.Helper()
	return Fetch(context.Background(), from.open, file, directory, time.Second, NewLimit(0))
}

func assertWhole(t *testing.T, directory string, content []byte) {
	t.Helper()
	found, err := os.ReadFile(filepath.Join(directory, "000012.sst"))
	if err != nil || !bytes.Equal(found, content) {
		t.Fatalf("%d bytes, %v", len(found), err)
	}
	left, _ := os.ReadDir(directory)
	if len(left) != 1 {
		t.Fatalf("there is more: %v", left)
	}
}

func TestAFileIsFetchedAndGoneOnWithWhereItEnded(t *testing.T) {
	content, directory := someBytes(100_000), t.TempDir()
	from := &source{content: content, piece: 7_000, breaksAt: 50_000, silentAt: -1}
	var failed *PeerError
	if _, err := fetched(t, from, described(content), directory); !errors.As(err, &failed) || !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(directory, "000012.sst")); err == nil {
		t.Fatal("half a file looks whole")
	}
	from.breaksAt = -1
	if found, err := fetched(t, from, described(content), directory); err != nil || found != 50_000 {
		t.Fatal(found, err)
	}
	assertWhole(t, directory, content)
	if found, err := fetched(t, from, described(content), directory); err != nil || found != 100_000 || len(from.asked) != 2 {
		t.Fatal(found, err, from.asked)
	}
}

func TestWhatIsThereOfAFileIsSummedWithTheRest(t *testing.T) {
	content, directory := someBytes(100_000), t.TempDir()
	from := &source{content: content, piece: 7_000, breaksAt: 50_000, silentAt: -1}
	_, _ = fetched(t, from, described(content), directory)
	part := filepath.Join(directory, "000012.sst.100000.1700000000123456789.part")
	there, err := os.ReadFile(part)
	if err != nil || !bytes.Equal(there, content[:50_000]) {
		t.Fatal(len(there), err)
	}
	there[10] ^= 1
	if err := os.WriteFile(part, there, 0o600); err != nil {
		t.Fatal(err)
	}
	from.breaksAt = -1
	var differs *ChecksumError
	if _, err := fetched(t, from, described(content), directory); !errors.As(err, &differs) {
		t.Fatal(err)
	}
	// It begins anew.
	if found, err := fetched(t, from, described(content), directory); err != nil || found != 0 {
		t.Fatal(found, err)
	}
	assertWhole(t, directory, content)
}

func TestAPartOfAnotherFileIsNotGoneOnWith(t *testing.T) {
	content, directory := someBytes(100_000), t.TempDir()
	from := &source{content: content, piece: 7_000, breaksAt: 50_000, silentAt: -1}
	other := described(content)
	other.ChangedNs++
	_, _ = fetched(t, from, other, directory)
	from.breaksAt = -1
	if found, err := fetched(t, from, described(content), directory); err != nil || found != 0 {
		t.Fatal(found, err)
	}
}

func TestWhatHasArrivedButNotItsChecksumIsNotWhole(t *testing.T) {
	content, directory := someBytes(1_000), t.TempDir()
	from := &source{content: content, piece: 500, breaksAt: -1, silentAt: -1, checksum: []byte{}}
	var failed *PeerError
	if _, err := fetched(t, from, described(content), directory); !errors.As(err, &failed) {
		t.Fatal(err)
	}
	from.checksum = nil
	if found, err := fetched(t, from, described(content), directory); err != nil || found != 1_000 || from.asked[1] != 1_000 {
		t.Fatal(found, err, from.asked)
	}
	assertWhole(t, directory, content)
}

func TestAnEmptyFileIsNotAskedFor(t *testing.T) {
	from, directory := &source{}, t.TempDir()
	if _, err := fetched(t, from, described(nil), directory); err != nil || len(from.asked) > 0 {
		t.Fatal(err, from.asked)
	}
	assertWhole(t, directory, nil)
}

func TestDescribed(t *testing.T) {
	directory, changed := t.TempDir(), time.Unix(0, 1_700_000_000_123_456_789)
	for name, content := range map[string]string{"a": "content", "b": "", LockFile: ""} {
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Described(directory)
	if err != nil || len(found) != 2 || found[0].Name != "a" || found[0].Size != 7 || found[1].Size != 0 {
		t.Fatal(found, err)
	}
	if found[0].ChangedNs != changed.UnixNano() {
		t.Fatal(found[0])
	}
	if _, err := Described(filepath.Join(directory, "none")); err == nil {
		t.Fatal("there is no such directory")
	}
}

func TestWhatIsNotAsItsNodeHasItIsRefused(t *testing.T) {
	content := someBytes(100_000)
	sum := binary.BigEndian.AppendUint64(nil, xxhash.Sum64(content))
	flipped := bytes.Clone(content)
	flipped[70_000] ^= 4
	for name, sent := range map[string][]byte{"a bit": flipped, "too much": append(bytes.Clone(content), 1)} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			from := &source{content: sent, piece: 8_000, breaksAt: -1, silentAt: -1, checksum: sum}
			var differs *ChecksumError
			if _, err := fetched(t, from, described(content), directory); !errors.As(err, &differs) {
				t.Fatal(err)
			}
			if left, _ := os.ReadDir(directory); len(left) > 0 {
				t.Fatalf("something is left: %v", left)
			}
			from.content = content
			if _, err := fetched(t, from, described(content), directory); err != nil {
				t.Fatal(err)
			}
			assertWhole(t, directory, content)
		})
	}
	t.Run("too little", func(t *testing.T) {
		from := &source{content: content[:90_000], piece: 8_000, breaksAt: -1, silentAt: -1}
		var failed *PeerError
		if _, err := fetched(t, from, described(content), t.TempDir()); !errors.As(err, &failed) {
			t.Fatal(err)
		}
	})
	t.Run("there before", func(t *testing.T) {
		directory := t.TempDir()
		// It has the same size, and another time.
		if err := os.WriteFile(filepath.Join(directory, "000012.sst"), flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		from := &source{content: content, piece: 8_000, breaksAt: -1, silentAt: -1}
		if _, err := fetched(t, from, described(content), directory); err != nil {
			t.Fatal(err)
		}
		assertWhole(t, directory, content)
	})
}

func TestASilentPeerIsLeft(t *testing.T) {
	content := someBytes(10_000)
	from := &source{content: content, piece: 1_000, breaksAt: -1, silentAt: 5_000}
	_, err := Fetch(context.Background(), from.open, described(content), t.TempDir(), 20*time.Millisecond, NewLimit(0))
	var failed *PeerError
	if !errors.As(err, &failed) || err.Error() != "nothing has arrived for 20ms" {
		t.Fatal(err)
	}
}

func TestSentFromAnOffset(t *testing.T) {
	content, path := someBytes(3*mostOfPiece+5), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int{0, 1, mostOfPiece, len(content) - 1, len(content)} {
		var sent []byte
		checksum, err := Send(context.Background(), path, uint64(offset), mostOfPiece, NewLimit(0), func(piece mem.Buffer) error {
			sent = append(sent, piece.ReadOnlyData()...)
			piece.Free()
			return nil
		})
		if err != nil || !bytes.Equal(sent, content[offset:]) {
			t.Fatal(offset, len(sent), err)
		}
		if binary.BigEndian.Uint64(checksum) != xxhash.Sum64(content) {
			t.Fatal(offset, checksum)
		}
	}
}

func TestALimitIsSharedAndKeepsNothing(t *testing.T) {
	limit, now := NewLimit(1_000), time.Now()
	// Bytes that were not used for long count for a moment only.
	if pause := limit.taken(200, now); pause != 100*time.Millisecond {
		t.Fatal(pause)
	}
	if pause := limit.taken(500, now); pause != 600*time.Millisecond {
		t.Fatal(pause)
	}
	if pause := limit.taken(0, now.Add(time.Hour)); pause != -mostAhead {
		t.Fatal(pause)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := limit.Wait(ctx, 1_000_000); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if NewLimit(0).Piece() != mostOfPiece || NewLimit(100_000).Piece() != 10_000 || NewLimit(1).Piece() != leastOfPiece {
		t.Fatal("pieces")
	}
}
