// Package agents runs clients of containerd's API against berth: containerd's own client and
// command line, a mirror between nodes, and hostile clients.
package agents

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/containerdapi"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 60 * time.Second

// bed is a berth that serves containerd's API at the socket Agents.
type bed struct {
	*testbed.Bed
	Agents string
}

// newBed starts berth with these options, and with runc if they have no runtime.
func newBed(t *testing.T, name string, options testbed.Options) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "agents-")
	testbed.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bed{Agents: filepath.Join(dir, "containerd.sock")}
	if options.Runtimes == nil && !strings.Contains(options.Config, "[runtimes.") {
		options.Runtimes = map[string]string{"runc": testbed.Part(t, testbed.Runc)}
	}
	options.Config += fmt.Sprintf("\n[containerd_api]\nsocket = %q\n", b.Agents)
	b.Bed = testbed.StartBed(t, name, options)
	b.Image += ":latest" // the full name, as berth lists it
	return b
}

// dial connects containerd's own Go client.
func (b *bed) dial(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(b.Agents, client.WithDefaultNamespace(containerdapi.Namespace), client.WithTimeout(patience))
	testbed.Mustf(t, err, "dial as containerd's client does")
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ctr runs containerd's command line in a namespace, and returns what it printed.
func (b *bed) ctr(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testbed.Part(t, testbed.Ctr), append([]string{"--address", b.Agents}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs ctr in the namespace of Kubernetes, and ends the test if ctr fails.
func (b *bed) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.ctr(t, append([]string{"-n", containerdapi.Namespace}, args...)...)
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// has fails unless the output has each of the texts.
func has(t *testing.T, what, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("%s lacks %q:\n%s", what, text, out)
		}
	}
}

// images returns the images that the CRI lists.
func (b *bed) images(t *testing.T) []*runtimeapi.Image {
	t.Helper()
	r, err := b.Client.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	testbed.Must(t, err)
	return r.GetImages()
}

// removeImage removes the bed's image as a kubelet does.
func (b *bed) removeImage(t *testing.T) {
	t.Helper()
	if _, err := b.Client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: b.Image}}); err != nil {
		t.Fatal(err)
	}
}
