package main

import (
	"net"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounded is a listener that closes each connection that is one too many, of all or of one address: whoever opens
// them without end must not keep others out for good, nor take the memory of this process.
type Bounded struct {
	net.Listener
	most, mostOfAddress int

	mutex sync.Mutex
	open  int
	of    map[string]int
}

// NewBounded returns a listener with at most so many connections, and so many of each address.
func NewBounded(listener net.Listener, most, mostOfAddress int) *Bounded {
	return &Bounded{Listener: listener, most: most, mostOfAddress: mostOfAddress, of: make(map[string]int)}
}

// Accept returns the next connection that is within the bounds.
func (b *Bounded) Accept() (net.Conn, error) {
	for {
		// Thousands that come together are taken one at a time: calls of others are answered in between.
		runtime.Gosched()
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := addressOf(conn)
		// The server behind this listener sets this only where it sees the connection itself.
		if raw, err := conn.(*net.TCPConn).SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(pingTimeout.Milliseconds()))
			})
		}
		if b.take(address) {
			return &counted{Conn: conn, release: sync.OnceFunc(func() { b.release(address) })}, nil
		}
		conn.Close()
	}
}

// addressOf returns the other end's address, without its port.
func addressOf(conn net.Conn) string {
	whole := conn.RemoteAddr().String()
	if address, _, err := net.SplitHostPort(whole); err == nil {
		return address
	}
	return whole
}

func (b *Bounded) take(address string) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.open >= b.most || b.of[address] >= b.mostOfAddress {
		return false
	}
	b.open++
	b.of[address]++
	return true
}

func (b *Bounded) release(address string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.open--
	if b.of[address]--; b.of[address] == 0 {
		delete(b.of, address)
	}
}

// counted is a connection with something to do when it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close closes the connection, which then counts no more.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
