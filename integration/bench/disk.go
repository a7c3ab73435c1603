package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
)

// disk is an ext4 filesystem on a block device of its own: a loop device whose file this process
// serves by FUSE. The kernel passes every flush of the device to this process, which makes it
// take a time. ext4 and the block layer merge flushes as they do on a real disk.
type disk struct {
	dir    string // where the filesystem is mounted
	device string // the name of the loop device
}

// diskSize has room for an image and hundreds of pods.
const diskSize = 1 << 30

// newBacking writes the file of a disk to this machine's disk. It has no holes, so that a flush of
// the disk does not also allocate blocks of the file.
func newBacking(t testbed.T) *os.File {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	testbed.Mustf(t, err, "make the file of a disk")
	t.Cleanup(func() { _ = file.Close() })
	zeros := make([]byte, 1<<20)
	for range diskSize / len(zeros) {
		_, err := file.Write(zeros)
		testbed.Mustf(t, err, "fill the file of a disk")
	}
	testbed.Mustf(t, file.Sync(), "fill the file of a disk")
	return file
}

// newDisk formats and mounts a disk. Its flushes happen one after the other, and each takes at
// least the given time. A cleanup removes the disk, but not its backing file.
func newDisk(t testbed.T, backing *os.File, flush time.Duration) *disk {
	t.Helper()
	served, d := t.TempDir(), &disk{dir: t.TempDir()}
	root := &fs.Inode{}
	server, err := fs.Mount(served, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "berth-bench"},
		OnAdd: func(ctx context.Context) {
			file := root.NewPersistentInode(ctx, &backingNode{file: backing, flush: flush}, fs.StableAttr{Mode: syscall.S_IFREG})
			root.AddChild("disk", file, false)
		},
	})
	testbed.Mustf(t, err, "serve a disk by FUSE")
	t.Cleanup(func() {
		// The kernel detaches a loop device in the background.
		testbed.Eventually(t, time.Minute, func() error { return unix.Unmount(served, 0) })
		server.Wait()
	})
	run(t, "mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", backing.Name())
	device := run(t, "losetup", "--find", "--show", filepath.Join(served, "disk"))
	t.Cleanup(func() { run(t, "losetup", "--detach", device) })
	d.device = filepath.Base(device)
	testbed.Mustf(t, unix.Mount(device, d.dir, "ext4", 0, ""), "mount a disk")
	t.Cleanup(func() { testbed.Checkf(t, unix.Unmount(d.dir, 0), "unmount a disk") })
	return d
}

func run(t testbed.T, program string, arguments ...string) string {
	t.Helper()
	output, err := exec.Command(program, arguments...).CombinedOutput()
	testbed.Mustf(t, err, "%s: %s", program, output)
	return strings.TrimSpace(string(output))
}

// flushes returns how many flushes the device has completed.
func (d *disk) flushes(t testbed.T) float64 {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/sys/block", d.device, "stat"))
	testbed.Mustf(t, err, "count flushes")
	n, err := strconv.ParseFloat(strings.Fields(string(stat))[15], 64) // Linux 5.5 has field 16
	testbed.Mustf(t, err, "count flushes")
	return n
}

// on is a T whose temporary directories are on a disk. They are removed with it.
type on struct {
	testbed.T
	disk *disk
}

func (o on) TempDir() string {
	dir, err := os.MkdirTemp(o.disk.dir, "")
	testbed.Mustf(o.T, err, "make a directory on the disk")
	return dir
}

// backingNode is the backing file as a file of a FUSE filesystem.
type backingNode struct {
	fs.Inode
	file  *os.File
	flush time.Duration

	mu sync.Mutex // held during a flush
}

func (n *backingNode) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = 0o600, diskSize
	return fs.OK
}

func (n *backingNode) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return backingHandle{n}, 0, fs.OK
}

// backingHandle is the opened file. Since Linux 6.9 the kernel reads and writes it without Read and
// Write.
type backingHandle struct{ *backingNode }

func (h backingHandle) PassthroughFd() (int, bool) { return int(h.file.Fd()), true }

func (h backingHandle) Read(_ context.Context, into []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultFd(h.file.Fd(), at, len(into)), fs.OK
}

func (h backingHandle) Write(_ context.Context, data []byte, at int64) (uint32, syscall.Errno) {
	n, err := h.file.WriteAt(data, at)
	return uint32(n), fs.ToErrno(err)
}

// Fsync flushes the file to this machine's disk, too, so that a disk without a given time is as
// fast as that.
func (h backingHandle) Fsync(context.Context, uint32) syscall.Errno {
	h.mu.Lock()
	defer h.mu.Unlock()
	done := time.After(h.backingNode.flush)
	err := unix.Fdatasync(int(h.file.Fd()))
	<-done
	return fs.ToErrno(err)
}
