package main

import (
	"errors"
	"net"
	"testing"
	"time"
)

// accepted dials and returns our end, and whether the listener took it.
func accepted(t *testing.T, listener net.Listener, taken chan net.Conn) (net.Conn, bool) {
	t.Helper()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	closed := make(chan struct{})
	go func() {
		// Nothing is sent: only an end is ever read.
		conn.Read(make([]byte, 1))
		close(closed)
	}()
	select {
	case <-taken:
		return conn, true
	case <-closed:
		return conn, false
	case <-time.After(10 * time.Second):
		t.Fatal("neither taken nor closed")
		return nil, false
	}
}

func TestConnectionsBeyondTheBoundsAreClosed(t *testing.T) {
	for name, bounds := range map[string][2]int{"of all": {2, 9}, "of one address": {9, 2}, "of what is left for others": {4, 0}} {
		t.Run(name, func(t *testing.T) {
			plain, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			quotas := NewQuotas(quotaBytes)
			listener := NewBounded(plain, bounds[0], bounds[1], quotas)
			taken, served := make(chan net.Conn), make(chan net.Conn, 9)
			ended := make(chan error, 1)
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						ended <- err
						return
					}
					served <- conn
					taken <- conn
				}
			}()
			for number, want := range []bool{true, true, false, false} {
				if _, got := accepted(t, listener, taken); got != want {
					t.Fatalf("connection %d: taken %v", number, got)
				}
			}
			first := <-served
			first.Close()
			first.Close() // counts once
			if _, got := accepted(t, listener, taken); !got {
				t.Fatal("the place of a closed connection is not free")
			}
			if _, got := accepted(t, listener, taken); got {
				t.Fatal("a connection that was closed twice made two places free")
			}
			(<-served).Close()
			(<-served).Close()
			if listener.open != 0 || len(quotas.addresses) != 0 {
				t.Fatalf("of closed connections there is left: %d, %v", listener.open, quotas.addresses)
			}
			listener.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
		})
	}
}
