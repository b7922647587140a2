// Package permits keeps what callers may read without asking Python again. Python has judged them by its rules
// (statehouse/rpc/permits.py), and withdraws what no longer holds.
package permits

import (
	"sync"

	"google.golang.org/protobuf/proto"

	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// most is how many are kept. Beyond that all are forgotten: they are given again when they are asked for.
const most = 100_000

// Call is a call of a caller, by their numbers on the link. The caller's is 0 if nothing is known of callers.
type Call struct {
	Caller uint64
	Kind   byte
}

// Permits are what callers may read, as Python has said.
type Permits struct {
	mutex    sync.RWMutex
	byCaller map[uint64]map[key]*controlv1.ServingPermit
	count    int
}

type key struct {
	kind  uint32
	store string
}

// Take takes a serialized ServingPermit.
func (p *Permits) Take(data []byte) error {
	permit := &controlv1.ServingPermit{}
	if err := proto.Unmarshal(data, permit); err != nil {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.count >= most || p.byCaller == nil {
		p.byCaller, p.count = map[uint64]map[key]*controlv1.ServingPermit{}, 0
	}
	of := p.byCaller[permit.Caller]
	if of == nil {
		of = map[key]*controlv1.ServingPermit{}
		p.byCaller[permit.Caller] = of
	}
	about := key{permit.Call, permit.Store}
	if of[about] == nil {
		p.count++
	}
	of[about] = permit
	return nil
}

// Withdraw withdraws all.
func (p *Permits) Withdraw() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.byCaller, p.count = nil, 0
}

// Forget forgets the permits of a caller that is gone.
func (p *Permits) Forget(caller uint64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.count -= len(p.byCaller[caller])
	delete(p.byCaller, caller)
}

// For returns the permit by which a call may read a store, nil if there is none. `us` is the monotonic clock in microseconds.
func (p *Permits) For(call Call, store string, us int64) *controlv1.ServingPermit {
	p.mutex.RLock()
	permit := p.byCaller[call.Caller][key{uint32(call.Kind), store}]
	p.mutex.RUnlock()
	if permit == nil || us > permit.UntilUs {
		return nil
	}
	return permit
}
