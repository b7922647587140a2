package serve

import (
	"sync"

	"google.golang.org/protobuf/proto"

	"statehouse-dataplane/admit"
	controlv1 "statehouse-dataplane/gen/statehouse/control/v1"
)

// mostPermits is how many are kept. Beyond that all are forgotten: whoever asks then gets theirs again.
const mostPermits = 100_000

// Call is a call of a caller, by their numbers on the link. The caller's is 0 if nothing is known of callers.
type Call struct {
	Caller uint64
	Kind   byte
}

// permits are what callers may read, as Python has said.
type permits struct {
	mutex    sync.RWMutex
	byCaller map[uint64]map[permitKey]*controlv1.ServingPermit
	count    int
}

type permitKey struct {
	kind  uint32
	store string
}

// Permit takes a serialized ServingPermit.
func (s *Served) Permit(data []byte) error {
	permit := &controlv1.ServingPermit{}
	if err := proto.Unmarshal(data, permit); err != nil {
		return err
	}
	p := &s.permits
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.count >= mostPermits || p.byCaller == nil {
		p.byCaller, p.count = map[uint64]map[permitKey]*controlv1.ServingPermit{}, 0
	}
	of := p.byCaller[permit.Caller]
	if of == nil {
		of = map[permitKey]*controlv1.ServingPermit{}
		p.byCaller[permit.Caller] = of
	}
	key := permitKey{permit.Call, permit.Store}
	if of[key] == nil {
		p.count++
	}
	of[key] = permit
	return nil
}

// Withdraw withdraws all permits.
func (s *Served) Withdraw() {
	p := &s.permits
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.byCaller, p.count = nil, 0
}

// Forget forgets the permits of a caller who is gone.
func (s *Served) Forget(caller uint64) {
	p := &s.permits
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.count -= len(p.byCaller[caller])
	delete(p.byCaller, caller)
}

// may says whether a call may read what it asks for, and has the terms say how it is answered.
func (p *permits) may(call Call, terms *admit.Terms, us int64) bool {
	p.mutex.RLock()
	permit := p.byCaller[call.Caller][permitKey{uint32(call.Kind), string(terms.Store)}]
	p.mutex.RUnlock()
	if permit == nil || us > permit.UntilUs || terms.Forwarded && !permit.MayForward {
		return false
	}
	terms.Conceals = permit.Conceals
	return true
}

// JudgesCallers says whether only those are answered who have a permit. It is so for as long as the server lives, or not.
func (s *Served) JudgesCallers() bool {
	by := s.decided.Load()
	return by != nil && by.NeedsPermits
}

// isPermitted says whether a call may read what it asks for, if callers are judged.
func (s *Served) isPermitted(by *decided, call Call, terms *admit.Terms, us int64) bool {
	return !by.NeedsPermits || s.permits.may(call, terms, us)
}
