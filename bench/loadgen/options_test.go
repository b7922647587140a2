package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOptionsFromAFileAndTheCommandLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	config := `{"targets": ["a:1", "b:2"], "store": "bench", "keys": 10, "concurrency": 2, "owners": [0, 1, 1], "seed": 5}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"--config", file, "--seed", "7", "--targets", "c:3,d:4", "--owners", "1,0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.Seed != 7 || o.Targets[1] != "d:4" || o.Partitions != 2 || o.Concurrency != 2 || o.TimeoutMs != 1000 {
		t.Fatalf("%+v", o)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	right := "--targets a:1 --store bench --keys 10 --concurrency 1"
	if _, err := parse(strings.Fields(right), io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		"--kind theirs", "--kind redis --method scan", "--kind redis --tls-ca a --tls-certificate b --tls-key c", "--method put", "--targets ,", "--store=", "--keys 0", "--keys 200000000", "--concurrency 0",
		"--rate 5", "--owners 0,1", "--owners 0,-1", "--owners 0,x", "--owners 0 --partitions 2", "--batch 1001",
		"--batch 0", "--method scan --span 11", "--duration-s 0", "--timeout-ms 0", "--version 4294967296",
		"--connections 0", "--concurrency 0 --rate 1e9", "--config /nowhere", "--hot 1001",
		"--method batch_get --hot 1", "--kind peer --max-staleness-ms 1", "--kind peer --newest", "--method scan --max-staleness-ms 1", "--tls-ca ca.pem", "--tls-certificate a --tls-key b", "--unknown 1", "more",
	} {
		if _, err := parse(strings.Fields(right+" "+wrong), io.Discard); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}
