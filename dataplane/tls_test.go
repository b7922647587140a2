package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// put writes a new certificate, which is its own CA's, and its key.
func put(t *testing.T, certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	its := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, its, its, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// write replaces a file by another: times of changes alone may be too coarse to show it.
func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreReadAnewWhenTheyChangeAndOneThatBreaksIsToldOnce(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	certificate, key := filepath.Join(t.TempDir(), "it.pem"), filepath.Join(t.TempDir(), "it.key")
	put(t, certificate, key)
	files, err := NewFiles(certificate, key, certificate)
	if err != nil {
		t.Fatal(err)
	}
	// later returns what is in them after the time in which they are not looked at.
	later := func() *material {
		files.lookedAt = files.lookedAt.Add(-lookedAtEvery)
		return files.Now()
	}
	first := files.Now()
	if later() != first {
		t.Fatal("read anew without a change")
	}
	put(t, certificate, key)
	if files.Now() != first {
		t.Fatal("looked at again at once")
	}
	second := later()
	if second == first {
		t.Fatal("a change is not seen")
	}
	for number, broken := range []func(){
		func() { write(t, key, []byte("secret, not a key")) },
		func() { os.Remove(key) },
	} {
		broken()
		for range 3 {
			if later() != second {
				t.Fatal("what was there before is not in force any more")
			}
		}
		if told := strings.Count(logged.String(), "can't be used"); told != number+1 {
			t.Fatalf("told %d times", told)
		}
	}
	if strings.Contains(logged.String(), "secret") {
		t.Fatal("what is in a key's file is in the log")
	}
	put(t, certificate, key)
	if found := later(); found == second || found == first {
		t.Fatal("what is whole again is not taken")
	}
}
