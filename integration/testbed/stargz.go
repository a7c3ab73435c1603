package testbed

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// StargzSnapshotter is the stargz snapshotter as a separate process.
type StargzSnapshotter struct {
	// Socket is the path of its socket, and Root is its directory.
	Socket, Root string

	log     string
	running *exec.Cmd
}

// StartStargz starts the snapshotter and waits until it listens.
func StartStargz(t T) *StargzSnapshotter {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "bt-stargz-")
	Mustf(t, err, "make a directory")
	p := &StargzSnapshotter{Socket: filepath.Join(dir, "sock"), Root: filepath.Join(t.TempDir(), "stargz"), log: filepath.Join(dir, "log")}
	t.Cleanup(func() {
		p.Kill(t)
		if text, err := os.ReadFile(p.log); err == nil && t.Failed() {
			t.Logf("the log of stargz:\n%s", text)
		}
		mounts, err := os.ReadFile("/proc/self/mounts")
		Check(t, err)
		for line := range strings.Lines(string(mounts)) {
			if fields := strings.Fields(line); strings.HasPrefix(fields[1], p.Root) {
				_ = unix.Unmount(fields[1], unix.MNT_DETACH)
			}
		}
		Check(t, os.RemoveAll(dir))
	})
	p.Start(t)
	return p
}

// Start starts the snapshotter and waits until it listens.
func (p *StargzSnapshotter) Start(t T) {
	t.Helper()
	if err := os.MkdirAll(p.Root, 0o700); err != nil {
		t.Fatalf("%v", err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer log.Close()
	cmd := exec.Command(Part(t, Stargz), "serve", p.Socket, p.Root)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v", err)
	}
	p.running = cmd
	Eventually(t, 30*time.Second, func() error {
		_, err := os.Stat(p.Socket)
		return err
	})
}

// Kill kills the snapshotter, if it runs.
func (p *StargzSnapshotter) Kill(t T) {
	t.Helper()
	if p.running == nil {
		return
	}
	p.Signal(t, unix.SIGKILL)
	_ = p.running.Wait() // always an error, because it was killed
	p.running = nil
	_ = os.Remove(p.Socket)
}

// Signal sends a signal to the snapshotter.
func (p *StargzSnapshotter) Signal(t T, s unix.Signal) {
	t.Helper()
	if err := unix.Kill(p.running.Process.Pid, s); err != nil {
		t.Fatalf("%v", err)
	}
}

// EStargz converts the layers of an image to eStargz, of which parts can be read.
func EStargz(t T, of v1.Image) v1.Image {
	t.Helper()
	layers, err := of.Layers()
	if err != nil {
		t.Fatalf("%v", err)
	}
	config, err := of.ConfigFile()
	if err != nil {
		t.Fatalf("%v", err)
	}
	image := Image(t)
	for _, layer := range layers {
		plain, err := layer.Uncompressed()
		if err != nil {
			t.Fatalf("%v", err)
		}
		var blob, digest bytes.Buffer
		cmd := exec.Command(Part(t, Stargz), "convert")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = plain, &blob, &digest
		if err := cmd.Run(); err != nil {
			t.Fatalf("convert a layer: %v: %s", err, digest.String())
		}
		mediaType, err := layer.MediaType()
		if err != nil {
			t.Fatalf("%v", err)
		}
		converted, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob.Bytes())), nil }, tarball.WithMediaType(mediaType))
		if err != nil {
			t.Fatalf("%v", err)
		}
		if image, err = mutate.Append(image, mutate.Addendum{
			Layer: converted, Annotations: map[string]string{"containerd.io/snapshot/stargz/toc.digest": digest.String()},
		}); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if image, err = mutate.Config(image, config.Config); err != nil {
		t.Fatalf("%v", err)
	}
	return image
}
