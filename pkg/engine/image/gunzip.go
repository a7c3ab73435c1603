package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"
)

const (
	// igzip is Intel's decompressor (package isal), three times as fast as Go's. pigz,
	// which others use, is slower.
	igzip = "igzip"
	// worthIgzip is how large a layer is that is worth a process.
	worthIgzip = 4 << 20
	// nobody is who decompresses: what an image is made of needs no rights.
	nobody = 65534
	// plainPipe is how much waits between the processes.
	plainPipe = 1 << 20
)

// gunzip opens gzip: by the fastest decompressor of the node, if the layer is large.
func gunzip(ctx context.Context, in io.Reader, size int64) (io.ReadCloser, error) {
	if size >= worthIgzip {
		if path, err := exec.LookPath(igzip); err == nil {
			r, err := gunzipBy(ctx, path, in)
			if err == nil {
				return r, nil
			}
			log.G(ctx).WithError(err).Debug("Decompressing a layer without igzip")
		}
	}
	return gzip.NewReader(in)
}

// gunzipBy starts a program that decompresses its input.
func gunzipBy(ctx context.Context, path string, in io.Reader) (io.ReadCloser, error) {
	out, its, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	widen(out)
	input := &remembered{ctx: ctx, from: in}
	ctx, cancel := context.WithCancel(ctx)
	said := &firstBytes{max: 1 << 10}
	cmd := exec.CommandContext(ctx, path, "-d", "-c")
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, its, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	err = cmd.Start()
	if err = errors.Join(err, its.Close()); err != nil {
		cancel()
		return nil, errors.Join(err, out.Close())
	}
	return &gunzipped{File: out, cmd: cmd, cancel: cancel, input: input, said: said}, nil
}

// widen lets much wait in a pipe. A smaller one does too.
func widen(pipe *os.File) {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, plainPipe) })
}

// remembered is a source that another goroutine reads; what went wrong in it, a panic
// too, is known when that has ended.
type remembered struct {
	ctx  context.Context
	from io.Reader
	err  error
}

// Read implements io.Reader.
func (r *remembered) Read(p []byte) (n int, err error) {
	defer func() {
		if err != nil && !errors.Is(err, io.EOF) {
			r.err = err
		}
	}()
	defer caught(r.ctx, &err)
	return r.from.Read(p)
}

// gunzipped is what a program has decompressed so far.
type gunzipped struct {
	*os.File
	cmd    *exec.Cmd
	cancel context.CancelFunc
	input  *remembered
	said   *firstBytes
	waited bool
	ended  error // io.EOF, or what went wrong
}

// Read implements io.Reader. An end is one only if the program says so.
func (g *gunzipped) Read(p []byte) (int, error) {
	if g.waited {
		return 0, g.ended
	}
	n, err := g.File.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	return n, g.wait()
}

func (g *gunzipped) wait() error {
	g.waited = true
	err := g.cmd.Wait()
	var exit *exec.ExitError
	switch {
	case g.input.err != nil:
		g.ended = g.input.err
	case err == nil:
		g.ended = io.EOF
	case errors.As(err, &exit) && exit.Exited():
		g.ended = fmt.Errorf("layer is not valid gzip: %s: %w", strings.TrimSpace(g.said.text()), errdefs.ErrInvalidArgument)
	default:
		g.ended = fmt.Errorf("decompress layer: %w", err)
	}
	return g.ended
}

// Close implements io.Closer. A program that is not done is ended.
func (g *gunzipped) Close() error {
	g.cancel()
	err := g.File.Close()
	if !g.waited {
		_ = g.wait() // it was killed
	}
	return err
}

// firstBytes keeps the beginning of what is written to it.
type firstBytes struct {
	max   int
	bytes []byte
}

// Write implements io.Writer.
func (f *firstBytes) Write(p []byte) (int, error) {
	f.bytes = append(f.bytes, p[:min(len(p), f.max-len(f.bytes))]...)
	return len(p), nil
}

func (f *firstBytes) text() string { return string(f.bytes) }
