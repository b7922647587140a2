// A disk for tests that can be made to stall: a folder, shown at another place by way of this process (FUSE).
//
// While the process is stopped (SIGSTOP), whatever asks the disk waits, as for a device that answers nothing; it goes
// on when the process does (SIGCONT). What the kernel has in its page cache is still read, as with a device.
//
// Its files have one name each (no hard links), as on many a disk that is mounted from elsewhere.
package main

import (
	"log"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

type disk struct {
	fuse.RawFileSystem
}

// A process that is killed closes its files. The kernel would ask a FUSE file system to flush each of them, and wait for
// that whatever happens; file systems on a device have nothing to do then.
func (disk) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status {
	return fuse.ENOSYS // it is never asked again
}

func (disk) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: stalling_disk MOUNT_POINT FOLDER")
	}
	root, err := fs.NewLoopbackRoot(os.Args[2])
	if err != nil {
		log.Fatalf("%s can't be used: %v", os.Args[2], err)
	}
	second := time.Second
	files := fs.NewNodeFS(root, &fs.Options{AttrTimeout: &second, EntryTimeout: &second})
	server, err := fuse.NewServer(disk{files}, os.Args[1], &fuse.MountOptions{
		FsName:            "stalling-disk",
		DirectMountStrict: true, // needs no helper program, but root
		// A thread that reads waits for the answer of this disk, as one that writes does. Else the kernel would ask for
		// the pages by itself, and the thread would wait for pages, as it does with any disk.
		SyncRead: true,
		// Else the kernel would read and write the files without us.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	})
	if err != nil {
		log.Fatalf("%s can't be mounted: %v", os.Args[1], err)
	}
	server.Serve()
}
