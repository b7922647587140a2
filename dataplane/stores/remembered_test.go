package stores

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"statehouse-dataplane/engine"
)

func TestKeysThatAreRememberedAreCountedAsOthers(t *testing.T) {
	for _, resources := range []*engine.Resources{engine.NewResources(1<<12, mib), engine.NewResources(8*mib, mib)} {
		keep, random := keeping(t), rand.New(rand.NewPCG(1, 1))
		keep.resources = resources
		s, _, err := NewKeyValue(keep.open())
		if err != nil {
			t.Fatal(err)
		}
		<-must[<-chan struct{}](t)(s.Keep())
		counted := 0
		for range 300 {
			records := make([]Record, 20)
			for at := range records {
				records[at].Key = fmt.Append(nil, random.IntN(50))
				if random.IntN(3) > 0 {
					records[at].Value = []byte("x")
				}
			}
			must[Applied](t)(s.Apply(records, &Checkpoint{}))
			if countsAgree(t, &s.tally, keep.database) {
				counted++
			}
		}
		if counted < 200 {
			t.Fatalf("%d times there was something to count", counted)
		}
	}
}

func TestASetOfRememberedKeysHasTheLatestWhenItIsFull(t *testing.T) {
	keys := newRemembered(keysOfSet * 8)
	for number := range 1_000 {
		key := fmt.Append(nil, number)
		if keys.has(key) {
			t.Fatalf("%d is there before it was added", number)
		}
		if keys.add(key); !keys.has(key) {
			t.Fatalf("%d isn't there", number)
		}
	}
	if keys.remove([]byte("999")); keys.has([]byte("999")) {
		t.Fatal("it is there after it was removed")
	}
	none := newRemembered(0)
	if none.add([]byte("a")); none.has([]byte("a")) {
		t.Fatal("it is there without room")
	}
	none.remove([]byte("a"))
}
