package stores

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/ordered"
)

const mib = 1 << 20

// kept opens a database again and again in one directory.
type kept struct {
	t         *testing.T
	path      string
	resources *engine.Resources
	database  *engine.Database
	budget    int64 // in memory
}

func keeping(t *testing.T) *kept {
	k := &kept{t: t, path: filepath.Join(t.TempDir(), "store"), resources: engine.NewResources(8*mib, 8*mib)}
	t.Cleanup(k.close)
	return k
}

func (k *kept) open() *engine.Database {
	k.close()
	var database *engine.Database
	var err error
	if k.budget > 0 {
		database, err = engine.OpenInMemory(k.path, k.resources, 1, k.budget)
	} else {
		database, err = engine.Open(k.path, k.resources, 1)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.database = database
	return database
}

func (k *kept) close() {
	if k.database != nil {
		if err := k.database.Close(); err != nil {
			k.t.Error(err)
		}
		k.database = nil
	}
}

func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func forever() *Walk { return &Walk{} }

// oddBytes returns few different ones, so that keys meet; bytes that escaping changes are among them.
func oddBytes(random *rand.Rand, most int) []byte {
	found := make([]byte, random.IntN(most+1))
	for at := range found {
		found[at] = []byte{0, 1, 'a', 0xff}[random.IntN(4)]
	}
	return found
}

// sometimesKeep has the numbers of entries kept from now on, most of the time while writes go on.
func sometimesKeep(t *testing.T, random *rand.Rand, keep func() (<-chan struct{}, error)) {
	t.Helper()
	if random.IntN(12) == 0 {
		if counted := must[<-chan struct{}](t)(keep()); random.IntN(3) == 0 {
			<-counted
		}
	}
}

// countsAgree compares the numbers that are kept with what is there.
func countsAgree(t *testing.T, kept *tally, database *engine.Database) bool {
	t.Helper()
	view := must[*engine.View](t)(database.View())
	defer view.Close()
	all := 0
	for _, number := range kept.families(view) {
		count, known := kept.of(number)
		if !known {
			return false
		}
		if walked := must[int64](t)(countOf(view, familyOf(number), forever())); walked != count {
			t.Fatalf("segment %d has %d entries, not %d", number, walked, count)
		}
		all += int(count)
	}
	if checkpoint := must[*Checkpoint](t)(stored(database)); checkpoint.Entries != nil && *checkpoint.Entries != int64(all) {
		t.Fatalf("%d entries are stored, and there are %d", *checkpoint.Entries, all)
	}
	return all > 0
}

func valueOr(random *rand.Rand, number int) []byte {
	if random.IntN(4) == 0 {
		return nil
	}
	return fmt.Appendf(nil, "%d", number)
}

func randomRange(random *rand.Rand, bound func() []byte) Range {
	keys := Range{Reverse: random.IntN(2) == 0}
	if random.IntN(2) == 0 {
		keys.Start = bound()
	}
	if random.IntN(2) == 0 {
		keys.Stop = bound()
	}
	if random.IntN(3) == 0 {
		gap := [2][]byte{bound(), bound()}
		if bytes.Compare(gap[0], gap[1]) > 0 {
			gap[0], gap[1] = gap[1], gap[0]
		}
		keys.Gaps = [][2][]byte{gap}
	}
	return keys
}

// has says whether a key is in a range: what `parts` is to be.
func (r Range) has(key string) bool {
	if key < string(r.Start) || r.Stop != nil && key >= string(r.Stop) {
		return false
	}
	for _, gap := range r.Gaps {
		if key >= string(gap[0]) && key < string(gap[1]) {
			return false
		}
	}
	return true
}

// inOrder returns the keys of a model that are in a range, in its order.
func inOrder[V any](should map[string]V, keys Range) []string {
	var found []string
	for key := range should {
		if keys.has(key) {
			found = append(found, key)
		}
	}
	slices.Sort(found)
	if keys.Reverse {
		slices.Reverse(found)
	}
	return found
}

type timedValue struct {
	value  string
	timeMS int64
}

func TestAKeyValueStoreIsTheLatestValueOfEachKey(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		keep := keeping(t)
		s, checkpoint, err := NewKeyValue(keep.open())
		if err != nil || checkpoint != nil {
			t.Fatalf("a new store: %v, %v", checkpoint, err)
		}
		should := map[string]timedValue{}
		position := int64(0)
		for step := range 100 {
			if random.IntN(12) == 0 {
				s, checkpoint, err = NewKeyValue(keep.open())
				if err != nil || position > 0 && checkpoint.Position != position {
					t.Fatalf("after opening it again: %v, %v", checkpoint, err)
				}
			}
			sometimesKeep(t, random, s.Keep)
			var records []Record
			for range random.IntN(8) {
				record := Record{Key: oddBytes(random, 3), Value: valueOr(random, step), TimestampMS: int64(random.IntN(100) - 1), Offset: position}
				position++
				records = append(records, record)
				if record.Value == nil {
					delete(should, string(record.Key))
				} else {
					should[string(record.Key)] = timedValue{string(record.Value), record.TimestampMS}
				}
			}
			must[Applied](t)(s.Apply(records, &Checkpoint{Position: position}))
			key := oddBytes(random, 3)
			var found timedValue
			known := must[bool](t)(s.Get(key, func(value []byte, timeMS int64) { found = timedValue{string(value), timeMS} }))
			if expected, should := should[string(key)]; known != should || found != expected {
				t.Fatalf("%x is %v, not %v", key, found, expected)
			}
			keys := randomRange(random, func() []byte { return oddBytes(random, 3) })
			limit := 1 + random.IntN(20)
			expected, seen := inOrder(should, keys), []string{}
			more := must[bool](t)(s.Scan(keys, Room{Entries: limit, Bytes: mib}, forever(), func(key, value []byte, timeMS int64) {
				seen = append(seen, string(key))
				if (timedValue{string(value), timeMS}) != should[string(key)] {
					t.Fatalf("a scan has another value of %x", key)
				}
			}))
			if more != (len(expected) > limit) || !slices.Equal(seen, expected[:min(limit, len(expected))]) {
				t.Fatalf("%+v has %x (more: %v), not %x", keys, seen, more, expected)
			}
			if count := reading(t, s, func(shown Shown) (int64, error) { return s.Count(shown, forever()) }); count != int64(len(should)) {
				t.Fatalf("step %d: %d keys, not %d", step, count, len(should))
			}
		}
	}
}

// parted returns what stores have in a range, read by themselves and then put together: as far as all of it is known, and
// whether there is more.
func parted(stores []map[string]string, keys Range, each Room) ([]string, bool) {
	var found []string
	last, isCut := "", false
	for _, should := range stores {
		room := each
		var part []string
		for _, key := range inOrder(should, keys) {
			if room.Takes(len(key) + len(should[key])) {
				part = append(part, key)
				continue
			}
			ends := part[len(part)-1]
			if !isCut || ends < last != keys.Reverse {
				last, isCut = ends, true
			}
			break
		}
		found = append(found, part...)
	}
	slices.Sort(found)
	if keys.Reverse {
		slices.Reverse(found)
	}
	return slices.DeleteFunc(found, func(key string) bool { return isCut && key != last && key > last != keys.Reverse }), isCut
}

func TestAPageOfSeveralStoresEndsWhereOneHasNoMoreRoom(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 4))
		several := make([]*KeyValue, 1+random.IntN(3))
		should := make([]map[string]string, len(several))
		for at := range several {
			store, _, err := NewKeyValue(keeping(t).open())
			if err != nil {
				t.Fatal(err)
			}
			several[at], should[at] = store, map[string]string{}
		}
		for range 60 {
			key := oddBytes(random, 4)
			at := int(crc32.ChecksumIEEE(key)) % len(several)
			value := make([]byte, random.IntN(20))
			should[at][string(key)] = string(value)
			must[Applied](t)(several[at].Apply([]Record{{Key: key, Value: value}}, &Checkpoint{}))
		}
		for range 200 {
			keys := randomRange(random, func() []byte { return oddBytes(random, 3) })
			room := Room{Entries: 1 + random.IntN(20), Bytes: random.IntN(200)}
			views := make([]*engine.View, len(several))
			for at, store := range several {
				view, _, err := store.View()
				if err != nil {
					t.Fatal(err)
				}
				views[at] = view
			}
			found, seen := Over(views, keys, room), []string{}
			for found.Next() {
				seen = append(seen, string(found.Key()))
			}
			if err := found.Err(); err != nil {
				t.Fatal(err)
			}
			if expected, isCut := parted(should, keys, room); !slices.Equal(seen, expected) || found.IsCut() != isCut {
				t.Fatalf("%+v, %+v: %q (cut: %v), not %q (%v)", keys, room, seen, found.IsCut(), expected, isCut)
			}
			found.Close()
			for _, view := range views {
				view.Close()
			}
		}
	}
}

func TestANumberOfKeysThatIsKeptIsThereAfterOpening(t *testing.T) {
	keep := keeping(t)
	s, _, err := NewKeyValue(keep.open())
	if err != nil {
		t.Fatal(err)
	}
	records := []Record{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2")}}
	must[Applied](t)(s.Apply(records, &Checkpoint{Position: 2}))
	<-must[<-chan struct{}](t)(s.Keep())
	must[Applied](t)(s.Apply([]Record{{Key: []byte("a")}}, &Checkpoint{Position: 3}))
	s, checkpoint, err := NewKeyValue(keep.open())
	if err != nil || checkpoint.Entries == nil || *checkpoint.Entries != 1 {
		t.Fatalf("%+v, %v", checkpoint, err)
	}
	ended := errors.New("it was walked over")
	count, err := s.Entries(Whole, &Walk{Ends: func() error { return ended }})
	if err != nil || count != 1 {
		t.Fatalf("%d, %v", count, err)
	}
}

// amounts returns as how many bytes the entries of a database count, and how many bytes its values have.
func amounts(t *testing.T, kept *tally, database *engine.Database) int64 {
	t.Helper()
	view := must[*engine.View](t)(database.View())
	defer view.Close()
	all := int64(0)
	for _, number := range kept.families(view) {
		found := view.Entries(familyOf(number), nil, nil, false)
		for found.Next() {
			all += int64(len(found.Key())+len(found.Value())) + entryBytes
		}
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		found.Close()
	}
	return all
}

// kind is one of the kinds of stores.
type kind struct {
	name string
	make func(database *engine.Database) (store, *tally)
	key  func(random *rand.Rand, step int) []byte
}

type store interface {
	Apply(records []Record, checkpoint *Checkpoint) (Applied, error)
}

var kinds = []kind{
	{"key-value", func(database *engine.Database) (store, *tally) {
		s, _, _ := NewKeyValue(database)
		return s, &s.tally
	}, func(random *rand.Rand, _ int) []byte { return oddBytes(random, 2) }},
	{"window", func(database *engine.Database) (store, *tally) {
		s, _, _ := NewTimedStore(database, Windows, 3*leastIntervalMS, false)
		return s, &s.tally
	}, func(random *rand.Rand, step int) []byte {
		return Windows.suffix(oddBytes(random, 2), Timed{StartMS: int64(step+random.IntN(5)) * leastIntervalMS / 10})
	}},
	{"versioned", func(database *engine.Database) (store, *tally) {
		s, _, _ := NewVersioned(database, 20)
		return s, &s.tally
	}, func(random *rand.Rand, _ int) []byte { return oddBytes(random, 2) }},
}

func TestAStoreInMemoryRefusesABatchThatWouldTakeMoreThanItMay(t *testing.T) {
	for _, each := range kinds {
		for seed := range uint64(6) {
			random := rand.New(rand.NewPCG(seed, 4))
			keep := keeping(t)
			keep.budget = 12 * (entryBytes + 50)
			s, kept := each.make(keep.open())
			refused := 0
			for step := range 200 {
				var records []Record
				for range 1 + random.IntN(10) {
					record := Record{Key: each.key(random, step), TimestampMS: int64(step + random.IntN(5))}
					if random.IntN(4) > 0 {
						record.Value = bytes.Repeat([]byte{'v'}, random.IntN(200))
					}
					records = append(records, record)
				}
				before := amounts(t, kept, keep.database)
				_, err := s.Apply(records, &Checkpoint{Position: int64(step)})
				after := amounts(t, kept, keep.database)
				var over *OverBudget
				switch {
				case errors.As(err, &over):
					refused++
					if after != before || over.Bytes <= keep.budget || over.Budget != keep.budget || over.Bytes <= before {
						t.Fatalf("%s: refused with %+v, and there were %d and are %d", each.name, over, before, after)
					}
				case err != nil:
					t.Fatal(err)
				case after > keep.budget && after > before:
					t.Fatalf("%s: %d bytes where %d are allowed, and before there were %d", each.name, after, keep.budget, before)
				}
				if kept.Bytes() != after {
					t.Fatalf("%s: counted as %d bytes, and there are %d", each.name, kept.Bytes(), after)
				}
			}
			if refused == 0 || refused == 200 {
				t.Fatalf("%s: refused %d of 200 batches", each.name, refused)
			}
		}
	}
}

type timedEntry struct {
	key    Timed
	value  string
	timeMS int64
}

func TestATimedStoreIsItsEntriesThatAreNotExpired(t *testing.T) {
	counted := 0
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 2))
		layout, duplicates := Windows, seed%4 == 1
		if seed%2 == 0 {
			layout = Sessions
		}
		keep := keeping(t)
		retentionMS := int64(1 + random.IntN(10*leastIntervalMS))
		openedAgain := func() (*TimedStore, *Checkpoint) {
			s, checkpoint, err := NewTimedStore(keep.open(), layout, retentionMS, duplicates)
			if err != nil {
				t.Fatal(err)
			}
			return s, checkpoint
		}
		s, _ := openedAgain()
		should := map[string]timedEntry{}
		streamTimeMS := int64(-1)
		for step := range 60 {
			sometimesKeep(t, random, s.Keep)
			if random.IntN(10) == 0 {
				var checkpoint *Checkpoint
				if s, checkpoint = openedAgain(); step > 0 && checkpoint.StreamTimeMS != streamTimeMS {
					t.Fatalf("the stream time is %d, not %d", checkpoint.StreamTimeMS, streamTimeMS)
				}
			}
			var records []Record
			late := 0
			for range random.IntN(10) {
				key := Timed{Key: oddBytes(random, 2), StartMS: int64(step*leastIntervalMS/2 + random.IntN(3*leastIntervalMS))}
				changelogKey := bytes.Clone(key.Key)
				if seed%2 == 0 {
					key.EndMS = key.StartMS + int64(random.IntN(2*leastIntervalMS))
					changelogKey = be64(be64(changelogKey, key.EndMS), key.StartMS)
				} else {
					key.Sequence = uint32(random.IntN(2)) * math.MaxUint32
					changelogKey = layout.suffix(changelogKey, key)
				}
				record := Record{Key: changelogKey, Value: valueOr(random, step), TimestampMS: int64(step)}
				records = append(records, record)
				entry := string(layout.entryKey(key))
				streamTimeMS = max(streamTimeMS, layout.timeMS(key))
				switch {
				case layout.timeMS(key) <= streamTimeMS-retentionMS:
					late++
				case record.Value != nil:
					should[entry] = timedEntry{key, string(record.Value), record.TimestampMS}
				case !duplicates:
					delete(should, entry)
				}
			}
			records = append(records, Record{Key: []byte("short"), Value: []byte("x")})
			applied := must[Applied](t)(s.Apply(records, &Checkpoint{}))
			if applied.Late != late || len(applied.Unreadable) != 1 || applied.Unreadable[0].Index != len(records)-1 {
				t.Fatalf("%+v: %d are late", applied, late)
			}
			if countsAgree(t, &s.tally, keep.database) {
				counted++
			}
			live := map[string]timedEntry{}
			for entry, each := range should {
				if layout.timeMS(each.key) > streamTimeMS-retentionMS {
					live[entry] = each
				}
			}
			if count := reading(t, s, func(shown Shown) (int64, error) { return s.Count(shown, forever()) }); count != int64(len(live)) {
				t.Fatalf("%d entries, not %d", count, len(live))
			}
			firstMS, lastMS := int64(random.IntN(60*leastIntervalMS)), int64(random.IntN(60*leastIntervalMS))
			wanted := map[string]timedEntry{}
			for entry, each := range live {
				if timeMS := layout.timeMS(each.key); firstMS <= timeMS && timeMS <= lastMS {
					wanted[entry] = each
				}
			}
			keys := randomRange(random, func() []byte { return ordered.Append(nil, oddBytes(random, 2)) })
			expected, seen := inOrder(wanted, keys), []string{}
			accept := func(key Timed) bool { return firstMS <= layout.timeMS(key) && layout.timeMS(key) <= lastMS }
			take := func(key Timed, entry, value []byte, timeMS int64) {
				seen = append(seen, string(entry))
				found := timedEntry{Timed{bytes.Clone(key.Key), key.StartMS, key.EndMS, key.Sequence}, string(value), timeMS}
				should := wanted[string(entry)]
				if !bytes.Equal(found.key.Key, should.key.Key) || found.value != should.value || found.timeMS != should.timeMS ||
					found.key.StartMS != should.key.StartMS || found.key.EndMS != should.key.EndMS {
					t.Fatalf("%+v, not %+v", found, should)
				}
			}
			reading(t, s, func(shown Shown) (bool, error) {
				return s.Scan(shown, keys, accept, firstMS, lastMS, Room{Entries: 1_000, Bytes: mib}, forever(), take)
			})
			if !slices.Equal(seen, expected) {
				t.Fatalf("%+v has %x, not %x", keys, seen, expected)
			}
		}
		first := s.segments.of(s.segments.horizonMS(streamTimeMS))
		for _, number := range keep.database.Segments() {
			if number < first {
				t.Fatalf("segment %d is there, and the first one with live entries is %d", number, first)
			}
		}
	}
	if counted < 100 {
		t.Fatalf("counted %d times only", counted)
	}
}

func be64(to []byte, number int64) []byte {
	return Sessions.suffix(to, Timed{StartMS: number, EndMS: 0})[:len(to)+8]
}

func TestAVersionedStoreAnswersOfEachMomentOfItsHistory(t *testing.T) {
	counted := 0
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 3))
		keep := keeping(t)
		retentionMS := int64(random.IntN(60))
		openedAgain := func() *Versioned {
			s, _, err := NewVersioned(keep.open(), retentionMS)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := openedAgain()
		versions := map[string]map[int64]string{} // all that were ever taken; a tombstone is ""
		streamTimeMS := int64(-1)
		for step := range 60 {
			if random.IntN(10) == 0 {
				s = openedAgain()
			}
			sometimesKeep(t, random, s.Keep)
			var records []Record
			for range random.IntN(8) {
				record := Record{Key: oddBytes(random, 2), Value: valueOr(random, step), TimestampMS: int64(step + random.IntN(30) - 10)}
				records = append(records, record)
				if record.TimestampMS < 0 {
					continue
				}
				streamTimeMS = max(streamTimeMS, record.TimestampMS)
				if record.TimestampMS < streamTimeMS-retentionMS {
					continue
				}
				if versions[string(record.Key)] == nil {
					versions[string(record.Key)] = map[int64]string{}
				}
				versions[string(record.Key)][record.TimestampMS] = string(record.Value)
			}
			must[Applied](t)(s.Apply(records, &Checkpoint{}))
			if countsAgree(t, &s.tally, keep.database) {
				counted++
			}
			startMS := max(0, streamTimeMS-retentionMS)
			if s.HistoryStartMS() != startMS {
				t.Fatalf("the history starts at %d, not %d", s.HistoryStartMS(), startMS)
			}
			at := startMS + int64(random.IntN(80))
			should, latest := map[string]timedValue{}, 0
			for key, all := range versions {
				if value, timeMS := newestAt(all, at); value != "" {
					should[string(ordered.Append(nil, []byte(key)))] = timedValue{value, timeMS}
				}
				if value, _ := newestAt(all, math.MaxInt64); value != "" {
					latest++
				}
			}
			if count := reading(t, s, func(shown Shown) (int64, error) { return s.Count(shown, forever()) }); count != int64(latest) {
				t.Fatalf("%d keys, not %d", count, latest)
			}
			keys := randomRange(random, func() []byte { return ordered.Append(nil, oddBytes(random, 2)) })
			expected, seen := inOrder(should, keys), []string{}
			take := func(key []byte, version Version) {
				escaped := string(ordered.Append(nil, key))
				seen = append(seen, escaped)
				if (timedValue{string(version.Value), version.TimestampMS}) != should[escaped] {
					t.Fatalf("%x is %q of %d, not %v", key, version.Value, version.TimestampMS, should[escaped])
				}
			}
			reading(t, s, func(shown Shown) (bool, error) {
				return s.Scan(shown, keys, at, Room{Entries: 1_000, Bytes: mib}, forever(), take)
			})
			if !slices.Equal(seen, expected) {
				t.Fatalf("as of %d: %x, not %x", at, seen, expected)
			}
			key := oddBytes(random, 2)
			var found timedValue
			known := reading(t, s, func(shown Shown) (bool, error) {
				return s.AsOf(shown, key, at, func(version Version) { found = timedValue{string(version.Value), version.TimestampMS} })
			})
			if expected, should := should[string(ordered.Append(nil, key))]; known != should || found != expected {
				t.Fatalf("%x as of %d is %v, not %v", key, at, found, expected)
			}
			if startMS > 0 {
				var before *BeforeHistory
				refusal := reading(t, s, func(shown Shown) (error, error) {
					_, err := s.AsOf(shown, key, startMS-1, func(Version) {})
					return err, nil
				})
				if !errors.As(refusal, &before) {
					t.Fatalf("before the history: %v", refusal)
				}
			}
			span := Span{startMS + int64(random.IntN(40)), startMS + int64(random.IntN(60))}
			history(t, s, key, versions[string(key)], span, random.IntN(2) == 0)
		}
	}
	if counted < 100 {
		t.Fatalf("counted %d times only", counted)
	}
}

// reading has a store read as it is.
func reading[T any](t *testing.T, s interface{ Present() (Shown, error) }, read func(Shown) (T, error)) T {
	t.Helper()
	shown := must[Shown](t)(s.Present())
	defer shown.Close()
	return must[T](t)(read(shown))
}

// newestAt returns the value of a key at a time, "" if it had none, and since when it had it.
func newestAt(all map[int64]string, at int64) (string, int64) {
	since := int64(-1)
	for timeMS := range all {
		if timeMS <= at {
			since = max(since, timeMS)
		}
	}
	return all[since], since
}

// history compares the history of a key, read page by page, with all of its versions.
func history(t *testing.T, s *Versioned, key []byte, all map[int64]string, span Span, reverse bool) {
	t.Helper()
	times := []int64{}
	for timeMS := range all {
		times = append(times, timeMS)
	}
	slices.Sort(times)
	type valid struct {
		value    string
		from, to int64
	}
	expected := []valid{}
	for place, from := range times {
		to := int64(-1)
		if place+1 < len(times) {
			to = times[place+1]
		}
		if all[from] != "" && span.FirstMS <= span.LastMS && from <= span.LastMS && (to < 0 || to > span.FirstMS) {
			expected = append(expected, valid{all[from], from, to})
		}
	}
	if reverse {
		slices.Reverse(expected)
	}
	prefix := ordered.Append(nil, key)
	left := Range{Start: prefix, Stop: append(bytes.Clone(prefix), afterTimes), Reverse: reverse}
	seen := []valid{}
	for more := true; more; {
		var last int64
		more = reading(t, s, func(shown Shown) (bool, error) {
			more, _, err := s.History(shown, key, left, span, Room{Entries: 2, Bytes: mib}, forever(), func(version Version) {
				seen = append(seen, valid{string(version.Value), version.TimestampMS, version.ValidToMS})
				last = version.TimestampMS
			})
			return more, err
		})
		at := be64(bytes.Clone(prefix), last)
		if reverse {
			left.Stop = at
		} else {
			left.Start = append(at, 0)
		}
	}
	if !slices.Equal(seen, expected) {
		t.Fatalf("%x from %d to %d has %v, not %v", key, span.FirstMS, span.LastMS, seen, expected)
	}
}

func TestAWalkThatNobodyWaitsForEnds(t *testing.T) {
	keep := keeping(t)
	s, _, err := NewKeyValue(keep.open())
	if err != nil {
		t.Fatal(err)
	}
	var records []Record
	for number := range 1_000 {
		records = append(records, Record{Key: fmt.Appendf(nil, "%d", number), Value: []byte("x")})
	}
	must[Applied](t)(s.Apply(records, &Checkpoint{}))
	gone := errors.New("gone")
	looks, seen := 0, 0
	walk := &Walk{Ends: func() error {
		if looks++; looks > 3 {
			return gone
		}
		return nil
	}}
	_, err = s.Scan(Range{}, Room{Entries: 1_000, Bytes: mib}, walk, func([]byte, []byte, int64) { seen++ })
	if !errors.Is(err, gone) || seen != 3*entriesATurn {
		t.Fatalf("%d entries, %v", seen, err)
	}
}
