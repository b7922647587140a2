package hot

import (
	"math/rand/v2"
	"testing"
	"time"
)

var now = time.Unix(1_000, 0)

func TestNoKeyIsCountedMoreOftenThanItWasAskedFor(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		keys, exact := &Keys{}, map[uint64]uint64{}
		most, skew := 1+random.Uint64N(400), 1+random.IntN(4)
		for asked := uint64(1); asked <= 3_000; asked++ {
			key := random.Uint64N(most)
			for range skew {
				key = min(key, random.Uint64N(most))
			}
			exact[key]++
			sure, all := keys.Count(key, now, time.Second)
			if sure > exact[key] || all != asked {
				t.Fatalf("%d of %d lookups are said to be for a key that %d were for", sure, all, exact[key])
			}
		}
		counted := map[uint64]counter{}
		for _, c := range keys.counters[:keys.used] {
			counted[c.key] = c
		}
		for key, times := range exact {
			c, isCounted := counted[key]
			if !isCounted && times > 3_000/tracked {
				t.Fatalf("a key of %d in 3,000 lookups is not known", times)
			}
			if isCounted && c.sure+c.before < times {
				t.Fatalf("at most %d lookups are said to be for a key that %d were for", c.sure+c.before, times)
			}
		}
	}
}

func TestAKeyThatIsAskedForAsOftenAsAllOthersIsSurelyCountedSo(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	keys := &Keys{}
	var sure, all uint64
	for range 10_000 {
		keys.Count(1+random.Uint64N(1<<40), now, time.Second)
		sure, all = keys.Count(0, now, time.Second)
	}
	if sure < all*2/5 {
		t.Fatalf("%d of %d", sure, all)
	}
}

func TestWhatWasCountedIsForgottenByHalves(t *testing.T) {
	keys := &Keys{}
	for range 100 {
		keys.Count(7, now, time.Second)
	}
	if sure, all := keys.Count(7, now.Add(999*time.Millisecond), time.Second); sure != 101 || all != 101 {
		t.Fatalf("before its time: %d, %d", sure, all)
	}
	if sure, all := keys.Count(7, now.Add(time.Second), time.Second); sure != 51 || all != 51 {
		t.Fatalf("after a half-life: %d, %d", sure, all)
	}
	if sure, all := keys.Count(7, now.Add(3*time.Second), time.Second); sure != 13 || all != 13 {
		t.Fatalf("after two more: %d, %d", sure, all)
	}
	if sure, all := keys.Count(7, now.Add(time.Hour), time.Second); sure != 1 || all != 1 {
		t.Fatalf("after very many: %d, %d", sure, all)
	}
}
