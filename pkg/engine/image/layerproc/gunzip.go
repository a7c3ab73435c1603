package layerproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/thread"
)

const (
	// worthProcess is the size of the smallest layer that is worth a process to decompress it.
	worthProcess = 4 << 20
	// unprivileged is the user id of igzip: decompression needs no privileges.
	unprivileged = 65534
	// plainPipe is the capacity of the pipe between the processes.
	plainPipe = 1 << 20
)

// gunzip decompresses a large gzip layer by igzip (package isal), three times as fast as Go's gzip,
// if the node has it. Otherwise plain is the blob. End waits for igzip and returns its error.
func gunzip(ctx context.Context, blob *os.File) (plain *os.File, end func() error) {
	none := func() error { return nil }
	info, err := blob.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() < worthProcess {
		return blob, none
	}
	head := make([]byte, 10)
	if _, err := blob.ReadAt(head, 0); err != nil || compression.DetectCompression(head) != compression.Gzip {
		return blob, none
	}
	path, err := exec.LookPath("igzip")
	if err != nil {
		return blob, none
	}
	var stderr firstBytes
	igzip := &exec.Cmd{
		Path: path, Args: []string{path, "-d", "-c"}, Env: []string{}, Dir: "/", Stdin: blob, Stderr: &stderr,
		SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC},
	}
	plain, err = startPiped(igzip)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to start igzip; decompressing layer without it")
		return blob, none
	}
	return plain, func() error {
		_ = plain.Close() // ends igzip if it is still writing
		err := igzip.Wait()
		exit, _ := errors.AsType[*exec.ExitError](err)
		switch {
		case exit != nil && exit.Exited():
			return fmt.Errorf("layer cannot be decompressed: igzip: %s: %w", strings.TrimSpace(string(stderr)), errdefs.ErrInvalidArgument)
		case exit != nil && exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE:
			return fmt.Errorf("decompress layer: igzip: %s: %w", exit, errdefs.ErrUnavailable)
		}
		return nil
	}
}

// startPiped starts a program with fewer rights than a child, and returns its output. Its memory
// needs no limit: igzip's memory does not depend on the layer.
func startPiped(cmd *exec.Cmd) (*os.File, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, _ = unix.FcntlInt(to.Fd(), unix.F_SETPIPE_SZ, plainPipe) // a smaller one works too
	cmd.Stdout = to
	err = thread.Run(func() error {
		if err := dropCapabilities(); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err = errors.Join(err, to.Close()); err != nil {
		return nil, errors.Join(err, from.Close())
	}
	_ = procfs.SetOOMScore(cmd.Process.Pid, 1000) // it may have ended
	return from, nil
}
