package orders

import (
	"time"

	"statehouse-dataplane/follow"
)

// pace slows the reading of a changelog down.
type pace struct {
	*replica
	bytesASecond uint64
	due          time.Time // before that nothing is to be read
	ended        chan struct{}
}

func newPace(r *replica, bytesASecond uint64) *pace {
	return &pace{replica: r, bytesASecond: bytesASecond, ended: make(chan struct{})}
}

// rest is for how many times as long as a write took nothing is read. See Pace in statehouse/contract/store_sums.py.
const rest = 3

// Take has the replica take what was read, and waits for as long as that may take.
func (p *pace) Take(slice follow.Slice) error {
	began := time.Now()
	if err := p.replica.Take(slice); err != nil || p.bytesASecond == 0 {
		return err
	}
	now := time.Now()
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(float64(slice.Bytes) / float64(p.bytesASecond) * float64(time.Second)))
	wait := time.NewTimer(max(rest*now.Sub(began), p.due.Sub(now)))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-p.ended:
	}
	return nil
}

// end ends a wait, and all that would come.
func (p *pace) end() {
	if p != nil {
		close(p.ended)
	}
}
