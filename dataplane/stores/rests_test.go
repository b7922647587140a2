package stores

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"statehouse-dataplane/engine"
	"statehouse-dataplane/rests/reststest"
)

func TestWhatComesOverTheNetworkDoesNotWaitForALongWalk(t *testing.T) {
	s, _, err := NewKeyValue(keeping(t).open())
	if err != nil {
		t.Fatal(err)
	}
	records := make([]Record, 30_000)
	for at := range records {
		records[at] = Record{Key: fmt.Appendf(nil, "%d", at), Value: make([]byte, 100)}
	}
	must[Applied](t)(s.Apply(records, &Checkpoint{}))
	view := must[*engine.View](t)(s.database.View())
	defer view.Close()
	middle := reststest.Middle(t, func(ctx context.Context) {
		walk := &Walk{Ends: ctx.Err}
		for err == nil {
			_, err = countOf(view, engine.Default, walk)
		}
	})
	if middle > 5*time.Millisecond {
		t.Fatalf("half of the answers took more than %v", middle)
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
