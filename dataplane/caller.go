package main

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	authorizationKey = "authorization"
	// In it a caller shows somebody else's certificate (statehouse/rpc/authorized.py).
	onBehalfKey = "on-behalf-of-bin"
	// How many one connection may have at a time. A service that passes on its users' tokens may use a few.
	maxAuthorizations = 16
	// A token has 8 KiB at most (statehouse/security/bearer_tokens.py), after its scheme.
	maxAuthorizationBytes = 8<<10 + 64
)

// Caller is who is at the other end of a connection: what they have shown, for the server to judge.
//
// To the link, each of their authorizations is a caller of its own, with a number. The link guards these.
type Caller struct {
	credentials.TLSInfo
	address string
	// The certificate in DER, and after it those that were shown with it; empty if there is none.
	shown []byte
	// Without TLS: what they send along could have been read on the way, and counts for nothing.
	isPlain bool

	isGone  bool
	numbers map[string]uint64
	oldest  []string // the same authorizations, in the order in which they came
}

// NewCaller returns one who has no numbers yet.
func NewCaller(address string, shown []byte) *Caller {
	return &Caller{address: address, shown: shown, numbers: map[string]uint64{}}
}

// callerIn returns who makes a call, and the authorization; without TLS there is none, and of a call within this process
// nothing is known, and nil.
func callerIn(ctx context.Context) (*Caller, string, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil, "", nil
	}
	caller, ok := from.AuthInfo.(*Caller)
	if !ok {
		return nil, "", nil
	}
	if caller.isPlain {
		return caller, "", nil
	}
	switch given := metadata.ValueFromIncomingContext(ctx, authorizationKey); {
	case len(given) == 0:
		return caller, "", nil
	case len(given) > 1:
		// Which of them counts must not depend on who reads them.
		return nil, "", status.Error(codes.Unauthenticated, "the call has authorization more than once: give it once")
	case len(given[0]) > maxAuthorizationBytes: // no token is longer; a frame has two bytes for its length
		return nil, "", status.Error(codes.Unauthenticated, "the authorization is too long")
	default:
		return caller, given[0], nil
	}
}

// add gives an authorization a number, and returns the one that the oldest had if there is no room for both, else 0.
func (c *Caller) add(authorization string, number uint64) uint64 {
	var gone uint64
	if len(c.oldest) == maxAuthorizations {
		gone = c.numbers[c.oldest[0]]
		delete(c.numbers, c.oldest[0])
		c.oldest = slices.Delete(c.oldest, 0, 1)
	}
	c.numbers[authorization] = number
	c.oldest = append(c.oldest, authorization)
	return gone
}
