// Package reststest measures how long others wait for a goroutine that works long.
package reststest

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"
)

// answers are measured, and the middle one counts: the machine may have other things to do.
const answers = 101

// Middle returns how long it takes to be answered over the network while one processor works, until the context ends. There
// and back it is looked at twice: without rests that takes 10 ms each, with them less than one.
func Middle(t *testing.T, work func(ctx context.Context)) time.Duration {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		work(ctx)
	}()
	defer func() {
		stop()
		<-ended
	}()
	took, one := make([]time.Duration, answers), []byte{1}
	for at := range took {
		began := time.Now()
		if _, err := conn.Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			t.Fatal(err)
		}
		took[at] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2]
}
