package files

import (
	"context"
	"sync"
	"time"
)

// mostAhead is for how long a limit may have been left unused and still counts: what was left before is gone.
const mostAhead = 100 * time.Millisecond

// Limit is how many bytes a second all transfers of a node together may have.
type Limit struct {
	perSecond int64 // 0: any number

	mutex sync.Mutex
	next  time.Time
}

// NewLimit returns one of so many bytes a second; 0: of any number.
func NewLimit(perSecond uint64) *Limit { return &Limit{perSecond: int64(min(perSecond, 1<<62))} }

// Wait returns once so many bytes more may go.
func (l *Limit) Wait(ctx context.Context, bytes int) error {
	if l.perSecond == 0 {
		return ctx.Err()
	}
	pause := l.taken(bytes, time.Now())
	if pause <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// taken takes bytes, and returns how long they have to wait.
func (l *Limit) taken(bytes int, now time.Time) time.Duration {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if earliest := now.Add(-mostAhead); l.next.Before(earliest) {
		l.next = earliest
	}
	l.next = l.next.Add(time.Duration(float64(bytes) / float64(l.perSecond) * float64(time.Second)))
	return l.next.Sub(now)
}

// Piece returns how many bytes of a file go together: with a low limit few, so that a receiver sees that they come.
func (l *Limit) Piece() int {
	if l.perSecond == 0 {
		return mostOfPiece
	}
	return int(min(max(l.perSecond/10, leastOfPiece), mostOfPiece))
}
