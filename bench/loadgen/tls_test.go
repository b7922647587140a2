package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// selfSigned writes a certificate for 127.0.0.1 that is its own CA, and its key.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	made, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("own.pem", "CERTIFICATE", made), write("own.key", "PRIVATE KEY", encoded)
}

func TestServersThatDemandACertificateAreShownIt(t *testing.T) {
	t.Parallel()
	certificate, key := selfSigned(t)
	o := short(methodGet, "")
	o.TLSCA, o.TLSCert, o.TLSKey = certificate, certificate, key
	client, err := o.tlsConfig()
	if err != nil {
		t.Fatal(err)
	}
	transport := credentials.NewTLS(&tls.Config{
		Certificates: client.Certificates, ClientCAs: client.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	address, _ := serve(t, &store{keys: testKeys, partitions: 4}, grpc.Creds(transport))
	o.Targets = []string{address}
	requirePassed(t, runLoad(t, o))
}

func TestFilesThatCannotBeReadAreAnError(t *testing.T) {
	t.Parallel()
	o := short(methodGet, "127.0.0.1:1")
	o.TLSCA, o.TLSCert, o.TLSKey = "/nowhere", "/nowhere", "/nowhere"
	if _, err := newLoad(o).run(t.Context()); err == nil {
		t.Fatal("it ran")
	}
}
