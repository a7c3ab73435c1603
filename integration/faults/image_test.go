package faults

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestBadPulls pulls images that cannot be pulled, and checks the code and text of the error.
func TestBadPulls(t *testing.T) {
	private := testbed.NewRegistry(t, testbed.RegistryOptions{Username: "user", Password: "correct horse"})
	secret := private.Push(t, "team/app:1", testbed.Busybox(t))
	strange := testbed.NewRegistry(t, testbed.RegistryOptions{TLS: true})
	broken := failingRegistry(t, http.StatusInternalServerError)
	stalled := stalledRegistry(t)
	b := newBed(t, testbed.Options{
		Registries: []*testbed.Registry{private, broken, stalled, strange},
		Config:     "[registry]\npull_progress_timeout = \"2s\"\n",
	})
	atRest := b.Rest(t)
	closed := closedPort(t)
	// berth's hosts.toml does not have the certificate authority of this registry.
	hosts := fmt.Sprintf("server = %q\n", strange.URL())
	testbed.Must(t, os.WriteFile(filepath.Join(b.HostsDir, strange.Host, "hosts.toml"), []byte(hosts), 0o600))

	basic := func(user, password string) *runtimeapi.AuthConfig {
		return &runtimeapi.AuthConfig{Username: user, Password: password}
	}
	for name, c := range map[string]struct {
		image   *runtimeapi.ImageSpec
		auth    *runtimeapi.AuthConfig
		code    codes.Code
		says    []string
		begins  string
		conceal string
	}{
		"no image":       {image: nil, code: codes.InvalidArgument, says: []string{"image"}},
		"empty image":    {image: &runtimeapi.ImageSpec{}, code: codes.InvalidArgument, says: []string{"image"}},
		"no reference":   {image: &runtimeapi.ImageSpec{Image: "Not A Reference"}, code: codes.InvalidArgument, says: []string{"reference", "lowercase"}},
		"long reference": {image: &runtimeapi.ImageSpec{Image: strings.Repeat("x/", 3000) + "y"}, code: codes.InvalidArgument, says: []string{"image"}},
		"absent image":   {image: &runtimeapi.ImageSpec{Image: b.Registry.Host + "/faults/none:1"}, code: codes.NotFound, says: []string{"check name and tag", b.Registry.Host}},
		"absent digest":  {image: &runtimeapi.ImageSpec{Image: b.Registry.Host + "/faults/busybox@sha256:" + absent}, code: codes.NotFound, says: []string{b.Registry.Host}},
		"unreachable registry": {
			image: &runtimeapi.ImageSpec{Image: closed + "/app:1"}, code: codes.Unknown,
			begins: "RegistryUnavailable", says: []string{closed, "check the network"},
		},
		"no such host": {
			image: &runtimeapi.ImageSpec{Image: "registry.invalid/app:1"}, code: codes.Unknown,
			begins: "RegistryUnavailable", says: []string{"registry.invalid", "DNS"},
		},
		"failing registry": {image: &runtimeapi.ImageSpec{Image: broken.Host + "/app:1"}, code: codes.Unknown, begins: "RegistryUnavailable", says: []string{broken.Host}},
		"stalled layer":    {image: &runtimeapi.ImageSpec{Image: stalled.Host + "/app:1"}, code: codes.Unknown, begins: "RegistryUnavailable", says: []string{"pull_progress_timeout"}},
		"no credentials":   {image: &runtimeapi.ImageSpec{Image: secret}, code: codes.PermissionDenied, says: []string{"imagePullSecrets", private.Host}},
		"wrong password": {
			image: &runtimeapi.ImageSpec{Image: secret}, auth: basic("user", "wrong-battery"), code: codes.PermissionDenied,
			says: []string{"imagePullSecrets"}, conceal: "wrong-battery",
		},
		"untrusted certificate": {image: &runtimeapi.ImageSpec{Image: strange.Host + "/app:1"}, code: codes.FailedPrecondition, says: []string{"certificate", "hosts.toml"}},
		"unknown handler":       {image: &runtimeapi.ImageSpec{Image: b.Image, RuntimeHandler: "rnuc"}, code: codes.InvalidArgument, says: []string{`"rnuc"`, "runc"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{Image: c.image, Auth: c.auth})
			testbed.Refused(t, err, c.code, c.says...)
			if err == nil {
				return
			}
			if _, text, _ := strings.Cut(err.Error(), "desc = "); !strings.HasPrefix(text, c.begins) {
				t.Errorf("the message does not begin with %q, which the kubelet needs: %q", c.begins, text)
			}
			if c.conceal != "" && (strings.Contains(err.Error(), c.conceal) || strings.Contains(b.Log(), c.conceal)) {
				t.Errorf("the secret %q is in the error or in the log", c.conceal)
			}
		})
	}
	t.Run("right password", func(t *testing.T) {
		_, err := b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: secret}, Auth: basic("user", "correct horse"),
		})
		testbed.Checkf(t, err, "pull with the right password")
		if strings.Contains(b.Log(), "correct horse") {
			t.Error("the password is in the log")
		}
	})
	t.Run("status and removal of a missing image", func(t *testing.T) {
		missing := &runtimeapi.ImageSpec{Image: b.Registry.Host + "/never/pulled:1"}
		st, err := b.Client.ImageStatus(testbed.Within(t, time.Minute), &runtimeapi.ImageStatusRequest{Image: missing})
		if err != nil || st.GetImage() != nil {
			t.Errorf("the status of a missing image is %v, %v, want none", st.GetImage(), err)
		}
		if _, err := b.Client.RemoveImage(testbed.Within(t, time.Minute), &runtimeapi.RemoveImageRequest{Image: missing}); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	b.NothingLeft(t, atRest)
}

// TestRefusedPull pulls an image that an image verifier rejects.
func TestRefusedPull(t *testing.T) {
	verifiers := t.TempDir()
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("[image_verifier]\nbin_dir = %q\n", verifiers)})
	atRest := b.Rest(t)
	const program = "#!/bin/sh\ncase $2 in */refused:*) echo nobody signed it; exit 1;; esac\n"
	testbed.Must(t, os.WriteFile(filepath.Join(verifiers, "by-name"), []byte(program), 0o755))
	bad := b.Registry.Push(t, "faults/refused:1", testbed.Busybox(t))
	_, err := b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: bad}})
	testbed.Refused(t, err, codes.Unknown, "by-name", "nobody signed it", verifiers)
	if err != nil {
		if _, text, _ := strings.Cut(err.Error(), "desc = "); !strings.HasPrefix(text, "SignatureValidationFailed") {
			t.Errorf("the message does not begin with SignatureValidationFailed, which the kubelet needs: %q", text)
		}
	}
	st, err := b.Client.ImageStatus(testbed.Within(t, time.Minute), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: bad}})
	if err != nil || st.GetImage() != nil {
		t.Errorf("the status of a refused image is %v, %v, want none", st.GetImage(), err)
	}
	if _, err := b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: b.Image}}); err != nil {
		t.Errorf("pull of an image that the verifier accepts: %v", err)
	}
	b.NothingLeft(t, atRest)
}

// failingRegistry answers every request with one status.
func failingRegistry(t *testing.T, code int) *testbed.Registry {
	t.Helper()
	return testbed.NewRegistry(t, testbed.RegistryOptions{Wrap: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", code) })
	}})
}

// stalledRegistry has an image whose layers stall after a few bytes.
func stalledRegistry(t *testing.T) *testbed.Registry {
	t.Helper()
	var serves atomic.Bool
	r := testbed.NewRegistry(t, testbed.RegistryOptions{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			if !serves.Load() || request.Method != http.MethodGet || !strings.Contains(request.URL.Path, "/blobs/") {
				next.ServeHTTP(w, request)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(1<<20))
			_, _ = w.Write([]byte("a beginning"))
			_ = http.NewResponseController(w).Flush()
			<-request.Context().Done()
		})
	}})
	// The image has a unique layer, because the node does not fetch layers that it has.
	r.Push(t, "app:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "own", Mode: 0o644, Body: []byte(r.Host)})))
	serves.Store(true)
	return r
}

// closedPort is an address of this host at which no process listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	address := l.Addr().String()
	testbed.Must(t, l.Close())
	return address
}

// TestDamagedImages damages the files of a pulled image while the daemon is down. The kubelet's
// next calls must repair the image, here from a registry that requires a password.
func TestDamagedImages(t *testing.T) {
	private := testbed.NewRegistry(t, testbed.RegistryOptions{Username: "user", Password: "secret"})
	image := private.Push(t, "team/app:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "own", Mode: 0o644, Body: []byte("of the top\n")})))
	b := newBed(t, testbed.Options{Registries: []*testbed.Registry{private}})
	atRest := b.Rest(t)
	pull := func(t *testing.T) {
		t.Helper()
		_, err := b.Client.PullImage(testbed.Within(t, time.Minute), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: image}, Auth: &runtimeapi.AuthConfig{Username: "user", Password: "secret"},
		})
		testbed.Mustf(t, err, "pull")
	}
	present := func(t *testing.T) bool {
		t.Helper()
		st, err := b.Client.ImageStatus(testbed.Within(t, time.Minute), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		testbed.Must(t, err)
		return st.GetImage() != nil
	}
	root := filepath.Join(b.Root, "images")
	folders := func(t *testing.T) []string { return globbed(t, root, "snapshots/overlayfs/snapshots/*/fs/*") }
	blobs := func(t *testing.T) []string { return globbed(t, root, "content/blobs/sha256/*") }
	for name, damage := range map[string]func(t *testing.T){
		"one folder": func(t *testing.T) {
			for _, dir := range folders(t) {
				if filepath.Base(dir) == "own" {
					removeAll(t, filepath.Dir(filepath.Dir(dir)))
				}
			}
		},
		"all folders": func(t *testing.T) { removeAll(t, filepath.Join(root, "snapshots", "overlayfs", "snapshots")) },
		"folders and blobs": func(t *testing.T) {
			for _, dir := range folders(t) {
				removeAll(t, filepath.Dir(dir))
			}
			for _, blob := range blobs(t) {
				testbed.Must(t, os.Truncate(blob, 0))
			}
		},
		"snapshotter": func(t *testing.T) { removeAll(t, filepath.Join(root, "snapshots")) },
		"content":     func(t *testing.T) { removeAll(t, filepath.Join(root, "content")) },
	} {
		for _, policy := range []string{"Always", "IfNotPresent"} {
			t.Run(name+", "+policy, func(t *testing.T) {
				pull(t)
				b.Kill9(t)
				damage(t)
				b.Start(t)
				pod := b.Client.RunSandbox(t, testbed.PodSpec{})
				var c *testbed.Container
				// A kubelet retries failed calls.
				for attempt := range 3 {
					if policy == "Always" || !present(t) {
						pull(t)
					}
					r, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
						PodSandboxId: pod.ID, SandboxConfig: pod.Config, Config: b.Client.ContainerConfig(fmt.Sprint("main", attempt), image, "sleep", "3600"),
					})
					if err == nil {
						c = b.Client.Container(r.GetContainerId(), "")
						break
					}
					t.Logf("attempt %d: %v", attempt, err)
				}
				if c == nil {
					t.Fatal("the image was not repaired in 3 attempts")
				}
				c.Start(t)
				testbed.Same(t, c.Exec(t, "cat", "/own"), "of the top\n", "the file of the top layer is")
				pod.Remove(t)
			})
		}
	}
	if _, err := b.Client.RemoveImage(testbed.Within(t, time.Minute), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
		t.Error(err)
	}
	b.NothingLeft(t, atRest)
}

func globbed(t *testing.T, root, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(all) == 0 {
		t.Fatalf("no file matches %s: %v", pattern, err)
	}
	return all
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	testbed.Must(t, os.RemoveAll(path))
}
