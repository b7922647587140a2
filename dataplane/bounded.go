package main

import (
	"net"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounded is a listener that closes each connection that is one too many, of all or of one address: a caller that opens
// them without end must not keep others out for good, nor take the memory of this process.
type Bounded struct {
	net.Listener
	most, mostOfAddress int
	quotas              *Quotas
	// Guarded by the quotas' lock.
	open    int
	refused uint64
}

// NewBounded returns a listener with at most so many connections, and so many of each address; if that is 0, an address
// may have as many as are left for others.
func NewBounded(listener net.Listener, most, mostOfAddress int, quotas *Quotas) *Bounded {
	return &Bounded{Listener: listener, most: most, mostOfAddress: mostOfAddress, quotas: quotas}
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
		// The server behind this listener sets this only where it sees the connection itself.
		if raw, err := conn.(*net.TCPConn).SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) {
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(pingTimeout.Milliseconds()))
			})
		}
		if quota := b.take(conn.RemoteAddr()); quota != nil {
			return &bounded{counted{conn, sync.OnceFunc(func() { b.release(quota) })}, quota}, nil
		}
		conn.Close()
	}
}

// addressOf returns the other end's address, without its port.
func addressOf(conn net.Conn) string { return withoutPort(conn.RemoteAddr().String()) }

func withoutPort(whole string) string {
	if address, _, err := net.SplitHostPort(whole); err == nil {
		return address
	}
	return whole
}

// take returns the quota of a connection, nil if it is one too many.
func (b *Bounded) take(addr net.Addr) *Quota {
	all := b.quotas
	all.mutex.Lock()
	defer all.mutex.Unlock()
	mostOfAddress := b.mostOfAddress
	if mostOfAddress == 0 {
		mostOfAddress = b.most - b.open
	}
	its := all.at(addr)
	if b.open >= b.most || its.connections >= mostOfAddress {
		all.forget(its)
		b.refused++
		return nil
	}
	b.open++
	its.connections++
	return &Quota{Addr: addr, all: all, address: its}
}

func (b *Bounded) release(quota *Quota) {
	quota.close()
	b.quotas.mutex.Lock()
	defer b.quotas.mutex.Unlock()
	b.open--
}

// bounded is a connection that is read as far as there is room.
type bounded struct {
	counted
	quota *Quota
}

// Read see net.Conn.
func (b *bounded) Read(into []byte) (int, error) {
	size, err := b.Conn.Read(into)
	b.quota.all.await()
	return size, err
}

// RemoteAddr returns the quota, which the connection's calls are found by.
func (b *bounded) RemoteAddr() net.Addr { return b.quota }

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
