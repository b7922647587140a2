package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// shownFiles are paths of what is trusted and what is shown; all are empty if nothing is encrypted.
type shownFiles struct {
	ca, certificate, key string
}

func (f shownFiles) transport() (credentials.TransportCredentials, error) {
	if f == (shownFiles{}) {
		return insecure.NewCredentials(), nil
	}
	trusted, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("-tls-ca can't be read: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("-tls-ca: %s has no certificate", f.ca)
	}
	pair, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		return nil, fmt.Errorf("-tls-certificate and -tls-key can't be read: %w", err)
	}
	return credentials.NewTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}), nil
}
