package orders

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/files"
	"statehouse-dataplane/follow"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
	statehousev1 "statehouse-dataplane/gen/statehouse/v1"
	"statehouse-dataplane/stores"
)

// fromDisk reads files of a directory, as another node sends them.
type fromDisk struct {
	file *os.File
	how  *sent
	path string
}

// sent is how another node sends a file.
type sent struct {
	ends    bool // after the first bytes
	isOther bool // than its checksum
}

func (f *fromDisk) Receive(take func([]byte) error) error {
	data := make([]byte, 1_000)
	read, err := f.file.Read(data)
	if err != nil {
		return err
	}
	if f.how.ends {
		return io.ErrUnexpectedEOF
	}
	return take(data[:read])
}

func (f *fromDisk) Checksum() []byte {
	content, _ := os.ReadFile(f.path)
	if f.how.isOther {
		content = append(content, 1)
	}
	return binary.BigEndian.AppendUint64(nil, xxhash.Sum64(content))
}

func (f *fromDisk) Close() { _ = f.file.Close() }

// pair returns orders with one store, and what reads its checkpoint at a path.
func pair(t *testing.T, r *replica, given string, how *sent) *Orders {
	t.Helper()
	o := New(func(*controlv1.EngineReport) {}, func(_ context.Context, _ string, request []byte) (files.Stream, error) {
		var asked statehousev1.ReadFileRequest
		if err := proto.Unmarshal(request, &asked); err != nil {
			return nil, err
		}
		file, err := os.Open(filepath.Join(given, asked.File))
		if err != nil {
			return nil, err
		}
		_, err = file.Seek(int64(asked.Offset), io.SeekStart)
		return &fromDisk{file, how, file.Name()}, err
	})
	t.Cleanup(o.Close)
	o.resources, o.limit = engine.NewResources(8<<20, 8<<20), files.NewLimit(0)
	t.Cleanup(o.resources.Close)
	o.stores[1] = r
	return o
}

func carried(t *testing.T, o *Orders, order *controlv1.EngineOrder) *controlv1.EngineAnswer {
	t.Helper()
	answer := o.Carry(order)
	if answer.Fault != nil {
		t.Fatal(answer.Fault)
	}
	return answer
}

func fetchOf(file *statehousev1.StoredFile, directory string) *controlv1.EngineOrder {
	return &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Fetch{Fetch: &controlv1.EngineFetch{
		Address: "peer:1", Asked: &statehousev1.ReadFileRequest{Checkpoint: "c", File: file.Name}, File: file,
		Directory: directory, SilenceMs: 10_000,
	}}}
}

func TestAStoreGoesFromOneFolderToAnotherByOrders(t *testing.T) {
	for _, kind := range []controlv1.EngineKind{controlv1.EngineKind_ENGINE_KIND_KEY_VALUE, controlv1.EngineKind_ENGINE_KIND_WINDOW} {
		t.Run(kind.String(), func(t *testing.T) {
			root := t.TempDir()
			given, fetched, place := filepath.Join(root, "given", "one"), filepath.Join(root, "fetched"), filepath.Join(root, "place")
			r := replicaIn(t, filepath.Join(root, "store"), kind, muchWritten)
			misplaced := int64(3)
			begin(t, r, stores.Checkpoint{Topic: "topic", TopicID: "id", StreamTimeMS: -1, FormatVersion: 2, Misplaced: &misplaced}, false)
			records := make([]stores.Record, 500)
			for at := range records {
				records[at] = window(int64(1_000+at), int64(at))
			}
			take(t, r, follow.Slice{Records: records, Next: 500})
			if _, err := r.save(1_234); err != nil {
				t.Fatal(err)
			}
			how := &sent{ends: true}
			o := pair(t, r, given, how)
			order := &controlv1.EngineCheckpoint{Store: 1, Path: given}
			manifest := carried(t, o, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Checkpoint{Checkpoint: order}}).GetManifest()
			var told stores.Checkpoint
			if err := json.Unmarshal(manifest.Checkpoint, &told); err != nil || told.Position != 500 || told.AtEndMS != 1_234 {
				t.Fatal(told, err)
			}

			if err := os.Mkdir(fetched, 0o755); err != nil {
				t.Fatal(err)
			}
			last := manifest.Files[slices.IndexFunc(manifest.Files, func(f *statehousev1.StoredFile) bool { return f.Size > 0 })]
			if kind := o.Carry(fetchOf(last, fetched)).GetFault().GetKind(); kind != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_PEER {
				t.Fatal(kind)
			}
			how.ends, how.isOther = false, true
			if kind := o.Carry(fetchOf(last, fetched)).GetFault().GetKind(); kind != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_CHECKSUM {
				t.Fatal(kind)
			}
			how.isOther = false
			nowhere := fetchOf(last, filepath.Join(root, "nowhere"))
			if kind := o.Carry(nowhere).GetFault().GetKind(); kind != controlv1.EngineFaultKind_ENGINE_FAULT_KIND_REFUSED {
				t.Fatal(kind)
			}
			for _, file := range manifest.Files {
				carried(t, o, fetchOf(file, fetched))
			}
			adopt := &controlv1.EngineAdopt{Fetched: fetched, Path: place, AtEndMs: 999, BootId: "boot", OffsetMs: 7}
			carried(t, o, &controlv1.EngineOrder{Order: &controlv1.EngineOrder_Adopt{Adopt: adopt}})

			theirs := replicaIn(t, place, kind, muchWritten)
			found := theirs.checkpoint
			if found.AtEndMS != 999 || found.BootID != "boot" || found.OffsetMS != 7 || found.Position != 500 || *found.Misplaced != 3 {
				t.Fatalf("%+v", found)
			}
			for _, each := range []*replica{r, theirs} {
				if count := entriesOf(t, each); count != 500 {
					t.Fatal(count)
				}
			}
			closeStore(t, theirs)
			closeStore(t, r)
		})
	}
}

func TestFetchesIntoOneDirectoryEndTogether(t *testing.T) {
	var f fetching
	var contexts []context.Context
	for at := range 3 {
		ctx, leave := f.enter(context.Background(), fmt.Sprintf("directory-%d", at%2))
		defer leave()
		contexts = append(contexts, ctx)
	}
	f.end("directory-0")
	f.end("directory-2")
	for at, ctx := range contexts {
		if hasEnded := ctx.Err() != nil; hasEnded != (at%2 == 0) {
			t.Fatal(at, hasEnded)
		}
	}
}

// entriesOf returns how many entries a store has, in all of its segments.
func entriesOf(t *testing.T, r *replica) int64 {
	t.Helper()
	segments := r.database.Segments()
	if len(segments) == 0 {
		segments = []int64{stores.Whole}
	}
	all := int64(0)
	for _, each := range segments {
		count, err := r.store.Entries(each, &stores.Walk{})
		if err != nil {
			t.Fatal(err)
		}
		all += count
	}
	return all
}
