package files

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
)

// endless is a file without an end.
type endless struct{}

func (endless) Read(data []byte) (int, error) { return len(data), nil }

func TestWhatComesOverTheNetworkDoesNotWaitForAChecksum(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		_, _ = addedOf(ctx, xxhash.New(), endless{})
		close(ended)
	}()
	took := make([]time.Duration, 101)
	for at := range took {
		began, one := time.Now(), []byte{1}
		if _, err := conn.Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			t.Fatal(err)
		}
		took[at] = time.Since(began)
	}
	stop()
	<-ended
	// There and back it is looked at twice. Without rests that takes 10 ms each; with them less than one, if the machine has
	// nothing else to do.
	slices.Sort(took)
	if middle := took[len(took)/2]; middle > 10*time.Millisecond {
		t.Fatalf("half of the answers took more than %v", middle)
	}
}

func TestRestsWithoutATimerOfTheSystem(t *testing.T) {
	without := &rests{}
	without.after(bytesToRest)
	without.close()
	closed := newRests()
	closed.close()
	closed.after(bytesToRest)
	if without.bytes != 0 || closed.bytes != 0 {
		t.Fatal("no rest was taken")
	}
}
