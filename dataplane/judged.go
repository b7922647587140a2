package main

import (
	"statehouse-dataplane/admit"
	"statehouse-dataplane/conceal"
	"statehouse-dataplane/permits"
	"statehouse-dataplane/wire"
)

// judged is a call as far as it depends on who makes it: what they may read, and what they may see.
type judged struct {
	// Nil if nobody is judged.
	permits *permits.Permits
	call    permits.Call
	// The server has not heard of the caller yet, and so has not judged them.
	isUnknown bool
	conceals  bool
}

// judged returns a call of somebody.
func (e *Express) judged(s *snapshot, who *Caller, authorization string, kind byte) *judged {
	if !s.NeedsPermits {
		return &judged{}
	}
	number, isKnown := e.link.KnownNumber(who, authorization)
	return &judged{permits: e.permits, call: permits.Call{Caller: number, Kind: kind}, isUnknown: !isKnown}
}

// may says whether the call may read a store now.
func (j *judged) may(store string) bool {
	if j.permits == nil {
		return true
	}
	if j.isUnknown {
		return false
	}
	permit := j.permits.For(j.call, store, admit.Now())
	if permit == nil {
		return false
	}
	j.conceals = j.conceals || permit.Conceals
	return true
}

// shown returns an answer as the caller sees it; false if the router has to show it.
func (j *judged) shown(answer []byte) ([]byte, bool) {
	if !j.conceals {
		return answer, true
	}
	return conceal.Answer(answer)
}

// shownResult returns a BatchGetResult that has an answer, as the caller sees it; false if the router has to show it.
func (j *judged) shownResult(result []byte) ([]byte, bool) {
	if !j.conceals {
		return result, true
	}
	came := resultIn(result)
	if came.kind != answered {
		return nil, false
	}
	shown, ok := conceal.Answer(came.content)
	if !ok {
		return nil, false
	}
	return wire.AppendElement(nil, shown), true
}
