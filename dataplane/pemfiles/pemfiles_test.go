package pemfiles

import (
	"os"
	"syscall"
	"testing"
	"time"
)

func TestWhatIsNoRegularFileIsRefusedAndNeverWaitedFor(t *testing.T) {
	folder := t.TempDir()
	fifo, device, large := folder+"/fifo", folder+"/device", folder+"/large"
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", device); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, device, large, folder, folder + "/nothing"} {
		ended := make(chan error, 1)
		go func() {
			_, err := read(path)
			ended <- err
		}()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s was read", path)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s is waited for", path)
		}
	}
	certificate, linked := folder+"/certificate", folder+"/linked"
	if err := os.WriteFile(certificate, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(certificate, linked); err != nil {
		t.Fatal(err)
	}
	if content, err := read(linked); err != nil || string(content) != "x" {
		t.Errorf("%q, %v", content, err)
	}
}
