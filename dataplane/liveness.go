package main

import (
	"context"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	livenessCheck = 250 * time.Millisecond
	// So many checks without a word are three seconds. A server that is merely busy says something within two.
	mostUnheard = 12
)

var errSilent = status.Error(codes.Unavailable, "the server behind the proxy doesn't respond: nothing was heard of it for 3 s")

// Liveness knows whether the server behind the proxy shows that it lives. A router says so often
// (router/calls/liveness.py): once one has, to hear nothing means that it is frozen, and that calls wait in vain. A node
// never says so: it answers late on purpose while its disk stalls, and routers ask others meanwhile.
//
// Time is counted in checks: after this process was frozen together with its server, neither has been silent.
type Liveness struct {
	onSilent func()
	expected sync.Once
	isSilent atomic.Bool

	mutex   sync.Mutex
	unheard int // checks since the last word
	heard   context.Context
	end     context.CancelCauseFunc
}

// NewLiveness returns the liveness of a server which is not expected to say anything yet. `onSilent` is called when one that was
// has fallen silent.
func NewLiveness(onSilent func()) *Liveness {
	l := &Liveness{onSilent: onSilent}
	l.heard, l.end = context.WithCancelCause(context.Background())
	return l
}

// Expect begins to check: the server has said that it lives, and will say so again.
func (l *Liveness) Expect() {
	l.expected.Do(func() {
		go func() {
			for range time.Tick(livenessCheck) {
				l.check()
			}
		}()
	})
}

// Heard takes note of any word of the server.
func (l *Liveness) Heard() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.unheard = 0
	if l.isSilent.Load() {
		l.heard, l.end = context.WithCancelCause(context.Background())
		l.isSilent.Store(false)
		log.Print("the server is heard again")
	}
}

func (l *Liveness) check() {
	l.mutex.Lock()
	l.unheard++
	falls := l.unheard == mostUnheard+1
	if falls {
		l.isSilent.Store(true)
		l.end(errSilent)
	}
	l.mutex.Unlock()
	if falls {
		log.Print("nothing was heard of the server for 3 s: calls fail until it is heard again")
		l.onSilent()
	}
}

// Spell returns a context that ends when the server falls silent; it has ended if the server is silent.
func (l *Liveness) Spell() context.Context {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.heard
}

// Guarded has calls fail while the server is silent, and those under way end when it falls silent.
func (l *Liveness) Guarded(next grpc.StreamHandler) grpc.StreamHandler {
	return func(service any, caller grpc.ServerStream) error {
		ctx, end := context.WithCancelCause(caller.Context())
		defer end(nil)
		defer context.AfterFunc(l.Spell(), func() { end(errSilent) })()
		err := next(service, &heardCall{caller, ctx})
		if err != nil && context.Cause(ctx) == errSilent {
			return errSilent
		}
		return err
	}
}

// heardCall is a call whose context ends when the server falls silent.
type heardCall struct {
	grpc.ServerStream
	ctx context.Context
}

func (c *heardCall) Context() context.Context { return c.ctx }
