package files

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
)

func TestDescribed(t *testing.T) {
	directory, content := t.TempDir(), someBytes(mostOfPiece+3)
	for name, each := range map[string][]byte{"a": content, "b": {}, LockFile: {}} {
		if err := os.WriteFile(filepath.Join(directory, name), each, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := describedIn(t, &Sums{}, directory)
	if len(found) != 2 || found[0].Name != "a" || found[1].Size != 0 {
		t.Fatal(found)
	}
	if !bytes.Equal(found[0].Checksum, described(content).Checksum) {
		t.Fatal("another checksum")
	}
}

func TestATableIsReadOnceAndOtherFilesEachTime(t *testing.T) {
	directory, changed := t.TempDir(), time.Now().Add(-time.Hour)
	write := func(name, content string, changed time.Time) {
		t.Helper()
		path := filepath.Join(directory, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	write("1.log", "first", changed)
	write("2.sst", "first", changed)
	sums := &Sums{}
	first := describedIn(t, sums, directory)

	// Behind its back: so it is seen what is read.
	write("1.log", "other", changed)
	write("2.sst", "other", changed)
	second := describedIn(t, sums, directory)
	if bytes.Equal(first[0].Checksum, second[0].Checksum) || !bytes.Equal(first[1].Checksum, second[1].Checksum) {
		t.Fatal(second)
	}

	write("2.sst", "other", changed.Add(time.Second))
	if third := describedIn(t, sums, directory); !bytes.Equal(third[1].Checksum, second[0].Checksum) {
		t.Fatal("a file of another time has the checksum of the old one")
	}
	if err := os.Remove(filepath.Join(directory, "2.sst")); err != nil {
		t.Fatal(err)
	}
	if describedIn(t, sums, directory); len(sums.tables) > 0 {
		t.Fatal("what is gone is kept")
	}
}

func describedIn(t *testing.T, sums *Sums, directory string) []*statehousev1.StoredFile {
	t.Helper()
	found, err := sums.Described(context.Background(), directory)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
