package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"statehouse-dataplane/pemfiles"
)

const (
	// How often files are looked at for changes, at most.
	lookedAtEvery = time.Second
	// Most bytes of a caller's certificate, and of all shown with it: they go along with what is passed on.
	maxCertificateBytes = 16 << 10
	maxShownBytes       = 2 * maxCertificateBytes
)

// Files are those that TLS needs, in PEM. They are read anew when they change.
type Files struct {
	certificate, key string
	// Empty: the system's certificates check the servers that are called.
	ca string

	mutex    sync.Mutex
	lookedAt time.Time
	seen     string
	now      *material
}

// material is what a handshake needs of the files.
type material struct {
	certificate tls.Certificate
	pool        *x509.CertPool
}

// NewFiles reads them.
func NewFiles(certificate, key, ca string) (*Files, error) {
	f := &Files{certificate: certificate, key: key, ca: ca, lookedAt: time.Now()}
	f.seen = f.stamps()
	var err error
	f.now, err = f.read()
	return f, err
}

// Now returns what is in them. While they can't be used it is what was in them before.
func (f *Files) Now() *material {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if time.Since(f.lookedAt) < lookedAtEvery {
		return f.now
	}
	f.lookedAt = time.Now()
	// Before they are read: what changes meanwhile is seen the next time.
	stamps := f.stamps()
	if stamps == f.seen {
		return f.now
	}
	f.seen = stamps
	if read, err := f.read(); err != nil {
		log.Printf("changed TLS files can't be used, the ones before stay in force: %v", err)
	} else {
		f.now = read
	}
	return f.now
}

func (f *Files) stamps() string {
	var all bytes.Buffer
	for _, path := range []string{f.certificate, f.key, f.ca} {
		if path == "" {
			continue
		}
		if found, err := os.Stat(path); err == nil {
			fmt.Fprintln(&all, found.ModTime().UnixNano(), found.Size(), found.Sys().(*syscall.Stat_t).Ino)
		} else {
			fmt.Fprintln(&all, err)
		}
	}
	return all.String()
}

func (f *Files) read() (*material, error) {
	certificate, err := pemfiles.Pair(f.certificate, f.key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s and key %s: %w", f.certificate, f.key, err)
	}
	if f.ca == "" {
		return &material{certificate, nil}, nil
	}
	pool, err := pemfiles.Pool(f.ca)
	if err != nil {
		return nil, err
	}
	return &material{certificate, pool}, nil
}

var clientAuth = map[string]tls.ClientAuthType{
	"none":     tls.NoClientCert,
	"optional": tls.VerifyClientCertIfGiven,
	"required": tls.RequireAndVerifyClientCert,
}

// handshakes are of connections from callers. What they have shown is the connection's AuthInfo, a *Caller.
type handshakes struct {
	credentials.TransportCredentials
	link *Link
}

// Handshakes returns the credentials of a server, whose link learns of callers.
func Handshakes(files *Files, callers string, link *Link) (credentials.TransportCredentials, error) {
	asked, ok := clientAuth[callers]
	if !ok {
		return nil, fmt.Errorf("-tls-callers is none, optional or required, not %q", callers)
	}
	if asked != tls.NoClientCert && files.ca == "" {
		return nil, errors.New("-tls-callers needs -tls-ca, which their certificates are checked with")
	}
	return &handshakes{link: link, TransportCredentials: credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := files.Now()
			return &tls.Config{
				MinVersion:   tls.VersionTLS12,
				Certificates: []tls.Certificate{now.certificate},
				ClientAuth:   asked,
				ClientCAs:    now.pool,
				// Certificates are checked at every handshake, with the CA of its time.
				SessionTicketsDisabled: true,
			}, nil
		},
	})}, nil
}

// plainly is of connections from callers that show nothing: only where they come from is known.
type plainly struct {
	credentials.TransportCredentials
	link *Link
}

// Plain returns the credentials of a server without TLS, whose link learns of callers.
func Plain(link *Link) credentials.TransportCredentials {
	return &plainly{link: link, TransportCredentials: insecure.NewCredentials()}
}

// ServerHandshake see credentials.TransportCredentials.
func (p *plainly) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	caller := NewCaller(addressOf(raw), nil)
	caller.isPlain = true
	return &counted{Conn: raw, release: sync.OnceFunc(func() { p.link.Forget(caller) })}, caller, nil
}

// ServerHandshake see credentials.TransportCredentials.
func (h *handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	found := info.(credentials.TLSInfo)
	caller := NewCaller(addressOf(raw), nil)
	shown := found.State.PeerCertificates
	if len(shown) > 0 && len(shown[0].Raw) > maxCertificateBytes {
		conn.Close()
		return nil, nil, errors.New("the caller's certificate is too large")
	}
	for _, each := range shown {
		if len(caller.shown)+len(each.Raw) > maxShownBytes {
			break // further ones are seldom needed; who judges misses them then, and says so
		}
		caller.shown = append(caller.shown, each.Raw...)
	}
	caller.TLSInfo = found
	return &counted{Conn: conn, release: sync.OnceFunc(func() { h.link.Forget(caller) })}, caller, nil
}

// dialing is of connections to other servers: each handshake takes the files as they are then.
type dialing struct {
	files *Files
	// Empty: a server's certificate is to have the host of its address.
	serverName string
}

// ClientHandshake see credentials.TransportCredentials.
func (d *dialing) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now := d.files.Now()
	return credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{now.certificate},
		RootCAs:      now.pool,
	}).ClientHandshake(ctx, authority, raw)
}

// ServerHandshake see credentials.TransportCredentials: these are a client's.
func (d *dialing) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("not a server's credentials")
}

// Info see credentials.TransportCredentials: gRPC makes the name the authority of all calls, and so of the handshake.
func (d *dialing) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls", SecurityVersion: "1.2", ServerName: d.serverName}
}

// Clone see credentials.TransportCredentials: nothing in it changes.
func (d *dialing) Clone() credentials.TransportCredentials { return d }

// OverrideServerName see credentials.TransportCredentials, where it is deprecated.
func (d *dialing) OverrideServerName(string) error { return errors.New("the name is the flag's") }
