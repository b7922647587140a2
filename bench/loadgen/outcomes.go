package main

// outcome is what became of a request, or of one lookup in it: up to 16 a gRPC status code, above what isn't one.
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
	// unsettled: it isn't known yet.
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

// outcomeOfCode returns that of a gRPC status code.
func outcomeOfCode(code uint64) outcome {
	if code > uint64(codeLast) {
		return codeUnknown
	}
	return outcome(code)
}

// worse returns the one that tells more against the servers: above all an answer that isn't right.
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
