// Package wasm runs WebAssembly modules by a shim that makes the same calls to the daemon as the
// shims of runwasi.
package wasm

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"

	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 2 * time.Minute

// handler is the handler of the shim, whose images are WebAssembly modules.
const handler = "wasmtime"

// bed is a daemon with the handler wasmtime.
type bed struct {
	*testbed.Daemon
	registry *testbed.Registry
	// blobs is the daemon's directory of content.
	blobs string
}

var module = sync.OnceValue(func() func(t *testing.T) []byte {
	var once sync.Once
	var built []byte
	return func(t *testing.T) []byte {
		t.Helper()
		once.Do(func() { built = testbed.WasmModule(t) })
		return built
	}
})()

// berthBed starts berth. lines are added to the handler's table in the configuration.
func berthBed(t *testing.T, settings shims.Wasm, options testbed.Options, lines string) (*bed, *testbed.Berth) {
	t.Helper()
	b := &bed{registry: testbed.NewRegistry(t, testbed.RegistryOptions{})}
	shim := testbed.NewWasm(t, "containerd-shim-wasmtime-v1", settings)
	options.CNI, options.Registries = testbed.NewCNI(t), []*testbed.Registry{b.registry}
	options.Runtimes, options.DefaultRuntime = map[string]string{"runc": testbed.Part(t, testbed.Runc)}, "runc"
	options.Config += "\n" + shim.TOML(handler, lines)
	berth := testbed.StartBerth(t, options)
	b.Daemon, b.blobs = berth.Daemon, filepath.Join(berth.Root, "images", "content", "blobs", "sha256")
	return b, berth
}

// push pushes an image to the registry, and has the daemon pull it for the handler.
func (b *bed) push(t *testing.T, repository string, image v1.Image) (reference, id string) {
	t.Helper()
	reference = b.registry.Push(t, repository, image)
	return reference, b.Client.Pull(t, handler, reference)
}

// compiled returns the digests of the daemon's blobs that are modules compiled by the shim.
func (b *bed) compiled(t *testing.T) (digests []string) {
	t.Helper()
	err := filepath.WalkDir(b.blobs, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has just been collected
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if h, err := tar.NewReader(f).Next(); err == nil && strings.HasPrefix(h.Name, "wazero-") {
			digests = append(digests, e.Name())
		}
		return nil
	})
	testbed.Must(t, err)
	return digests
}

// has is whether the daemon has a blob.
func (b *bed) has(t *testing.T, hash v1.Hash) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(b.blobs, hash.Hex))
	return err == nil
}

// run runs a pod of the handler until it exits, and returns its status and output.
func (b *bed) run(t *testing.T, spec testbed.PodSpec) (*runtimeapi.ContainerStatus, string) {
	t.Helper()
	spec.Handler = handler
	pod := b.Client.RunPod(t, spec)
	status := pod.Container.WaitExit(t)
	said := logOf(t, pod.Container)
	pod.Remove(t)
	return status, said
}

// logOf returns a container's output so far, each line after the name of its stream.
func logOf(t *testing.T, c *testbed.Container) string {
	t.Helper()
	text, err := os.ReadFile(c.LogPath)
	testbed.Must(t, err)
	var said strings.Builder
	for line := range strings.Lines(string(text)) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			said.WriteString(parts[1] + " " + parts[3])
		}
	}
	return said.String()
}

// says waits until a container has written a text.
func says(t *testing.T, c *testbed.Container, want string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if said := logOf(t, c); !strings.Contains(said, want) {
			return fmt.Errorf("the output lacks %q: %q", want, said)
		}
		return nil
	})
}

func (b *bed) image(t *testing.T, handler, ref string) *runtimeapi.Image {
	t.Helper()
	r, err := b.Client.ImageStatus(testbed.Within(t, patience), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref, RuntimeHandler: handler}})
	testbed.Must(t, err)
	return r.GetImage()
}

func (b *bed) remove(t *testing.T, ref string) {
	t.Helper()
	if _, err := b.Client.RemoveImage(testbed.Within(t, patience), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
}

// exec tries to run a command in a container.
func (b *bed) exec(ctx context.Context, c *testbed.Container) error {
	_, err := b.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/app.wasm"}, Timeout: 10})
	return err
}
