package main

import (
	"context"
	"time"
)

const longestMargin = 5 * time.Millisecond

// endOf returns a moment before a call's deadline, if it has one. At that gRPC resets the call's stream, which a caller
// whose clock is a little behind takes for a call that was cancelled: so it learns before.
func endOf(ctx context.Context) (time.Time, bool) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return deadline, false
	}
	return deadline.Add(-min(longestMargin, max(time.Until(deadline), 0)/20)), true
}

// inTime returns the context of a call that ends at `endOf`.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := endOf(ctx); ok {
		return context.WithDeadline(ctx, end)
	}
	return context.WithCancel(ctx)
}
