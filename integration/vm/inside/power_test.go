//go:build berth_vm

package inside

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

const (
	// holding is the directory with a file for each place at which berth is held.
	holding = "/run/holding"
	// layerPulled is a place without a failpoint: half of a layer was received.
	layerPulled = "image.layer"
	// reason is the reason of a cordon.
	reason = "the power is about to go"
	// large is the size of a layer that stalls halfway.
	large = 8 << 20
)

// places are the points at which berth is held when the power is cut.
var places = []string{
	failpoint.SandboxReserved, failpoint.SandboxNamespaces, failpoint.SandboxNetworked, failpoint.SandboxReady,
	failpoint.ContainerPlanned, failpoint.ContainerMounted, failpoint.ContainerCreated, failpoint.ContainerRunning,
	layerPulled, failpoint.ImageUnpacked, failpoint.ImageLinked, failpoint.ImageFlush, failpoint.BinaryCopied,
}

// TestHold holds berth at all places at the same time, prints Held, and waits until the power is
// cut.
func TestHold(t *testing.T) {
	n := found(t)
	for _, handler := range slices.Concat(both, both) {
		n.make(t, handler, n.Image)
	}
	// The state so far is on disk. Of later changes, only what berth itself flushes must not be lost.
	n.leave(t)
	run(t, "sync")
	run(t, "berth", "handler", "add", "third", "--path", "/usr/bin/crun")
	run(t, "berth", "handler", "cordon", "third", "--reason", reason)

	testbed.Must(t, os.MkdirAll(holding, 0o755))
	hold := slices.DeleteFunc(slices.Clone(places), func(place string) bool { return place == layerPulled })
	// Files below /run are gone after the power cut.
	write(t, "/run/systemd/system/berth.service.d/hold.conf", fmt.Sprintf(
		"[Service]\nExecStart=\nExecStart=/b/failpoints/berth serve\nEnvironment=BERTH_HOLD=%s:%s\n", holding, strings.Join(hold, ",")))
	run(t, "systemctl", "daemon-reload")
	pid := unit(t, "MainPID")
	run(t, "systemctl", "restart", "berth")
	otherPID(t, n.client, pid)
	ready(t, n.client)

	ctx := t.Context()
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	// Pulls wait for each other's new layers, so these images share none.
	whole := registry.Push(t, "node/other:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "other", Mode: 0o644, Body: []byte("other")})))
	half := strings.Replace(registry.Push(t, "node/large:1", largeImage(t)), registry.Host, stalls(t, registry), 1)
	goes := func(name string, call func() error) {
		go func() { t.Logf("%s returned: %v", name, call()) }()
	}
	for range 4 { // one for each place of a sandbox
		goes("RunPodSandbox", func() error {
			_, err := n.client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: n.client.SandboxConfig("held"), RuntimeHandler: "runc"})
			return err
		})
	}
	for _, p := range n.Pods[2:] { // one for each place of a container, each in another pod
		goes("CreateContainer", func() error {
			config := n.client.SandboxConfig("any")
			c, err := n.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
				PodSandboxId: p.Sandbox, SandboxConfig: config, Config: n.client.ContainerConfig("held", n.Image, "sleep", "100000"),
			})
			if err != nil {
				return err
			}
			_, err = n.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
			return err
		})
	}
	files := registry.Push(t, "node/model:1", testbed.Artifact(t, testbed.File{Path: "model", Body: []byte("weights")}))
	for _, reference := range []string{whole, half, files} {
		goes("PullImage", func() error {
			_, err := n.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reference}})
			return err
		})
	}
	// A runc with other content, which berth copies during the reload.
	runc, err := os.ReadFile("/b/runc")
	testbed.Must(t, err)
	testbed.Must(t, errors.Join(os.WriteFile("/b/runc.new", append(runc, "upgraded"...), 0o755), os.Rename("/b/runc.new", "/b/runc")))
	goes("reload", func() error { return exec.CommandContext(ctx, "berth", "reload", "--wait").Run() })

	last := ""
	testbed.Eventually(t, soon, func() error {
		var missing []string
		for _, place := range places {
			if _, err := os.Stat(filepath.Join(holding, place)); err != nil {
				missing = append(missing, place)
			}
		}
		if now := fmt.Sprint(missing); now != last {
			t.Logf("not held yet at %s", now)
			last = now
		}
		if len(missing) > 0 {
			return fmt.Errorf("not held yet at %v", missing)
		}
		return nil
	})
	// Flushing is held by now, so this image is pulled but its layers may not be on disk.
	fresh := registry.Push(t, freshName, testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "fresh", Mode: 0o644, Body: slices.Concat(largeBody(), largeBody())})))
	if _, err := n.client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: fresh}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stdout.WriteString(Held + "\n"); err != nil {
		t.Fatal(err)
	}
	select {}
}

// freshName is the name, without the registry, of the image that was pulled last.
const freshName = "node/fresh:1"

// freshImage returns the full name of freshName. It fails if berth has logged no removal of layers.
func (n *node) freshImage(t *testing.T) string {
	t.Helper()
	testbed.Contains(t, run(t, "journalctl", "-b", "-u", "berth", "-o", "cat"), "Removed unpacked layers that were not flushed", "layers that were not flushed before the power cut were kept; the log")
	images, err := n.client.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	testbed.Must(t, err)
	for _, image := range images.GetImages() {
		for _, tag := range image.GetRepoTags() {
			if strings.HasSuffix(tag, "/"+freshName) {
				return tag
			}
		}
	}
	t.Fatalf("the image that was pulled last is missing: %v", images.GetImages())
	return ""
}

// largeImage has a large file, whose content shows whether it is complete.
func largeImage(t *testing.T) v1.Image {
	t.Helper()
	return testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "large", Mode: 0o644, Body: largeBody()}))
}

// largeBody returns data that cannot be compressed and are always the same.
func largeBody() []byte {
	body := make([]byte, large)
	rand.NewChaCha8([32]byte{}).Read(body) //nolint:errcheck // returns no errors
	return body
}

// stalls is a proxy to a registry that never sends the second half of a large layer, whether the
// layer is requested in parts or as a whole.
func stalls(t *testing.T, registry *testbed.Registry) string {
	t.Helper()
	target, err := url.Parse(registry.URL())
	testbed.Must(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(r *http.Response) error {
			var from, to, size int64
			if _, err := fmt.Sscanf(r.Header.Get("Content-Range"), "bytes %d-%d/%d", &from, &to, &size); err != nil {
				from, size = 0, r.ContentLength
			}
			if r.Request.Method == http.MethodGet && size > large/2 && from+r.ContentLength > large/2 {
				r.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(io.LimitReader(r.Body, large/2-from), stall{}), r.Body}
			}
			return nil
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	go http.Serve(listener, proxy) //nolint:errcheck,gosec // until the power cut
	host := listener.Addr().String()
	write(t, filepath.Join("/etc/berth/hosts.d", host, "hosts.toml"), fmt.Sprintf("server = %q\n", "http://"+host))
	return host
}

// stall is a reader that notes its first Read in holding, and never returns.
type stall struct{}

func (stall) Read([]byte) (int, error) {
	if err := os.WriteFile(filepath.Join(holding, layerPulled), nil, 0o600); err != nil {
		return 0, err
	}
	select {}
}

// TestAfterPowerCut checks what is left after the power cut, and that all of it can be removed and
// created again.
func TestAfterPowerCut(t *testing.T) {
	n := found(t)
	otherPID(t, n.client, "")
	ready(t, n.client)

	// An operator has to release addresses whose file the power cut has emptied (docs/network.md).
	// Two pods had got an address after the last flush.
	emptied := strings.Fields(run(t, "find", "/var/lib/cni/networks/node", "-name", "10.*", "-empty", "-print", "-delete"))
	if len(emptied) > 2 {
		t.Errorf("more than 2 files of addresses are empty: %v", emptied)
	}

	n.ended(t)
	containers, err := n.client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	testbed.Must(t, err)
	for _, c := range containers.GetContainers() {
		testbed.Same(t, c.GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "container %s is", c.GetId())
	}
	if third := run(t, "berth", "handler", "show", "third"); !strings.Contains(third, "cordoned") || !strings.Contains(third, reason) {
		t.Errorf("the handler that was added and cordoned before the power cut is\n%s", third)
	}

	n.wholeImages(t)
	n.empty(t)
}

// ended fails unless all listed sandboxes are NOTREADY, and all pods of n are listed and exited.
func (n *node) ended(t *testing.T) {
	t.Helper()
	sandboxes, err := n.client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	testbed.Must(t, err)
	listed := map[string]bool{}
	for _, s := range sandboxes.GetItems() {
		listed[s.GetId()] = true
		testbed.Same(t, s.GetState(), runtimeapi.PodSandboxState_SANDBOX_NOTREADY, "sandbox %s of %s is", s.GetId(), s.GetMetadata().GetName())
	}
	for _, p := range n.Pods {
		if !listed[p.Sandbox] {
			t.Errorf("%s's sandbox is not listed", p.Handler)
		}
		c, err := n.client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.Container})
		if err != nil || c.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || c.GetStatus().GetReason() == "" {
			t.Errorf("%s's container is %v, %v", p.Handler, c.GetStatus(), err)
		}
	}
}

// wholeImages runs the images that were pulled before the power cut, and pulls again the one whose
// pull was cut off. It compares files in them with the originals.
func (n *node) wholeImages(t *testing.T) {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	testbed.Must(t, err)
	bodies := map[string][]byte{"/bin/busybox": busybox, "/large": largeBody(), "/fresh": slices.Concat(largeBody(), largeBody())}
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	registry.WriteHosts(t, "/etc/berth/hosts.d")
	again := registry.Push(t, "node/large:1", largeImage(t))
	fresh := n.freshImage(t)
	for _, handler := range both {
		for image, files := range map[string][]string{n.Image: {"/bin/busybox"}, again: {"/bin/busybox", "/large"}, fresh: {"/bin/busybox", "/fresh"}} {
			pod := n.client.RunPod(t, testbed.PodSpec{Handler: handler, Image: image, Command: []string{"sleep", "1000"}})
			for _, file := range files {
				want := fmt.Sprintf("%x", sha256.Sum256(bodies[file]))
				if got := pod.Container.Exec(t, "sha256sum", file); !strings.HasPrefix(got, want) {
					t.Errorf("%s: %s of %s has the wrong checksum: %s", handler, file, image, got)
				}
			}
			pod.Remove(t)
		}
	}
}

// empty removes all pods, and fails if files of pods or unfinished pulls are left.
func (n *node) empty(t *testing.T) {
	t.Helper()
	testbed.Must(t, n.client.RemoveAllPods(t.Context()))
	n.Pods = nil
	n.leave(t)
	for what, pattern := range map[string]string{
		"addresses": "/var/lib/cni/networks/node/10.*", "namespaces": "/run/netns/berth-*",
		"records": "/var/lib/berth/records/*/*", "half pulled content": "/var/lib/berth/images/content/ingest/*",
		"directories of sandboxes": "/run/berth/sandboxes/*", "directories of containers": "/run/berth/containers/*",
	} {
		testbed.Eventually(t, 10*time.Second, func() error {
			left, err := filepath.Glob(pattern)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%s are left: %v", what, left)
			}
			return err
		})
	}
}
