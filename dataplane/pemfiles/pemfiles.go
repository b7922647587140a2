// Package pemfiles reads certificates and keys from files.
package pemfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"syscall"
)

const maxBytes = 1 << 20

// Pair returns the certificate in one file with its private key in another.
func Pair(certificate, key string) (tls.Certificate, error) {
	itsCertificate, err := read(certificate)
	if err != nil {
		return tls.Certificate{}, err
	}
	itsKey, err := read(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(itsCertificate, itsKey)
}

// Pool returns the certificates in a file, to check others with.
func Pool(path string) (*x509.CertPool, error) {
	content, err := read(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("there are no certificates in %s", path)
	}
	return pool, nil
}

// read returns a file's content. It never waits, as to open a FIFO would, and with it all handshakes; and it reads no more
// than such a file has.
func read(path string) ([]byte, error) {
	if found, err := os.Stat(path); err != nil {
		return nil, err
	} else if !found.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// It may be another file by now.
	if found, err := file.Stat(); err != nil {
		return nil, err
	} else if !found.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(content) > maxBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxBytes)
	}
	return content, err
}
