package serve

import (
	"statehouse-dataplane/admit"
	"statehouse-dataplane/permits"
)

// Call is a call of a caller.
type Call = permits.Call

// JudgesCallers says whether only those are answered who have a permit. It is so for as long as the server lives, or not.
func (s *Served) JudgesCallers() bool {
	by := s.decided.Load()
	return by != nil && by.NeedsPermits
}

// isPermitted says whether a call may read what it asks for, and has the terms say how it is answered.
func (s *Served) isPermitted(by *decided, call Call, terms *admit.Terms, us int64) bool {
	if !by.NeedsPermits {
		return true
	}
	permit := s.permits.For(call, string(terms.Store), us)
	if permit == nil || terms.Forwarded && !permit.MayForward {
		return false
	}
	terms.Conceals = permit.Conceals
	return true
}
