package main

import (
	"context"
	"time"
)

const longestMargin = 5 * time.Millisecond

// inTime returns the context of a call with a deadline a moment before its own. At that one gRPC resets the call's
// stream, which a caller whose clock is a little behind takes for a call that was cancelled: so it is told before.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, is := ctx.Deadline()
	if !is {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(longestMargin, max(time.Until(deadline), 0)/20)))
}
