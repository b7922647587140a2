package main

// outcome says how a request, or one lookup in it, ended. Values up to 16 are gRPC status codes, larger ones are ours.
type outcome uint8

const (
	ok          outcome = 0
	codeUnknown outcome = 2
	codeLast    outcome = 16
)

const (
	wrong outcome = codeLast + 1 + iota
	missing
	timedOut
	refused
	reset
	connectionLost
	notConnected
	outcomesEnd
	// unsettled: not known yet.
	unsettled = outcomesEnd
)

var outcomeNames = [outcomesEnd]string{
	"ok", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
	"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	"wrong", "missing", "timed_out", "refused", "reset", "connection_lost", "not_connected",
}

func (o outcome) String() string {
	return outcomeNames[o]
}

// outcomeOfCode returns the outcome for a gRPC status code.
func outcomeOfCode(code uint64) outcome {
	if code > uint64(codeLast) {
		return codeUnknown
	}
	return outcome(code)
}

// worse returns the worse outcome: a wrong value first, then a missing one, then the first that isn't ok.
func worse(a, b outcome) outcome {
	for _, worst := range []outcome{wrong, missing} {
		if a == worst || b == worst {
			return worst
		}
	}
	if a == ok {
		return b
	}
	return a
}
