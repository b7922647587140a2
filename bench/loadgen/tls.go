package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/net/http2"
)

// tlsConfig returns what to connect with; nil: nothing is encrypted.
func (o options) tlsConfig() (*tls.Config, error) {
	if o.TLSCA == "" {
		return nil, nil
	}
	trusted, err := os.ReadFile(o.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("tls_ca can't be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(trusted) {
		return nil, errors.New("tls_ca has no certificate")
	}
	pair, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("tls_certificate and tls_key can't be read: %w", err)
	}
	return &tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{pair}, NextProtos: []string{http2.NextProtoTLS},
	}, nil
}

// dial connects to a target, with TLS if there is a configuration.
func (l *load) dial(running context.Context, target string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	if l.tls == nil {
		return dialer.DialContext(running, "tcp", target)
	}
	limited, cancel := context.WithTimeout(running, connectTimeout) // the handshake is part of it
	defer cancel()
	return (&tls.Dialer{NetDialer: &dialer, Config: l.tls}).DialContext(limited, "tcp", target)
}

// scheme returns the scheme of requests.
func (l *load) scheme() string {
	if l.tls == nil {
		return "http"
	}
	return "https"
}
