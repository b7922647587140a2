package files

import (
	"context"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"statehouse-dataplane/rests/reststest"
)

// endless is a file without an end.
type endless struct{}

func (endless) Read(data []byte) (int, error) { return len(data), nil }

func TestWhatComesOverTheNetworkDoesNotWaitForAChecksum(t *testing.T) {
	middle := reststest.Middle(t, func(ctx context.Context) { _, _ = added(ctx, xxhash.New(), endless{}) })
	if middle > 5*time.Millisecond {
		t.Fatalf("half of the answers took more than %v", middle)
	}
}
