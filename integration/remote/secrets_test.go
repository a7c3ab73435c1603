package remote

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// A container whose image is in another store gets it with what its own pod has
// pulled it with, and with nothing else. Where that is not enough the kubelet
// pulls it itself, because it hears that the image is not there.
func TestImagesThatNeedSecrets(t *testing.T) {
	t.Parallel()
	basic, tokens := &gate{}, &gate{tokens: true}
	gated := map[*gate]*testbed.Registry{}
	for _, g := range []*gate{basic, tokens} {
		gated[g] = testbed.NewRegistry(t, testbed.RegistryOptions{Wrap: g.wrap})
	}
	b := newBed(t, gated[basic], gated[tokens])
	inner := b.behind(t)
	own := b.Client.RunSandbox(t, testbed.PodSpec{})
	for _, row := range []struct {
		handler string
		gate    *gate
		daemon  *testbed.Daemon
	}{{"legacy", basic, b.other}, {"inner", tokens, inner.Daemon}, {"legacy", tokens, b.other}} {
		name := "private basic"
		if row.gate.tokens {
			name = "private tokens"
		}
		t.Run(row.handler+" "+name, func(t *testing.T) {
			s := &secretImage{bed: b, gate: row.gate, daemon: row.daemon}
			s.name = gated[row.gate].Push(t, row.handler+"/private:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "who", Mode: 0o644, Body: []byte(row.handler + name)})))
			row.gate.close()
			t.Cleanup(func() { row.gate.open() })
			row.gate.let("ann", "annspass")
			row.gate.let("bob", "bobspass")
			id, err := pull(t, b.Client, own, s.name, "ann", "annspass")
			if err != nil {
				t.Fatal(err)
			}
			s.id = id
			s.pod = b.Client.RunSandbox(t, testbed.PodSpec{Handler: row.handler})
			s.check(t)
		})
	}
	if !t.Failed() {
		noSecrets(t, b, "annspass", "bobspass", "bobsnext")
	}
}

// secretImage is an image that is in berth's own store, for ann's pod, and that
// bob's pod in another daemon wants.
type secretImage struct {
	*bed
	gate     *gate
	daemon   *testbed.Daemon
	name, id string
	pod      *testbed.Pod
}

func (s *secretImage) check(t *testing.T) {
	s.refused(t, "without a pull of its own")
	if _, err := pull(t, s.Client, s.pod, s.name, "bob", "annspass"); err == nil {
		t.Error("pulled with a wrong secret")
	}
	if got := idOf(t, s.Client, "", s.name); got != "" {
		t.Errorf("after a pull with a wrong secret it is there as %s", got)
	}
	s.pulls(t, "bobspass")
	s.created(t, "pulled")

	s.lost(t)
	s.created(t, "with the pod's own secret")
	if users := s.gate.came(); !slices.Equal(users, []string{"bob"}) {
		t.Errorf("pulled as %q", users)
	}

	s.lost(t)
	s.gate.let("bob", "bobsnext")
	s.refused(t, "with a secret that is not good any more")
	s.pulls(t, "bobsnext")
	s.created(t, "with another secret")

	s.lost(t)
	s.Restart(t)
	s.refused(t, "after a restart, which forgets secrets")
	s.pulls(t, "bobsnext")
	s.created(t, "after a restart")
}

// lost takes the image from the pod's own store.
func (s *secretImage) lost(t *testing.T) {
	t.Helper()
	if err := remove(t, s.daemon.Client, s.id); err != nil {
		t.Fatal(err)
	}
	s.gate.came()
	if got := idOf(t, s.Client, "", s.name); got != s.id {
		t.Errorf("with ann's pod it is there as %q", got)
	}
}

// refused has the creation fail, and the image be missing from then on.
func (s *secretImage) refused(t *testing.T, how string) {
	t.Helper()
	if got := idOf(t, s.Client, "", s.name); got != s.id {
		t.Fatalf("%s: it is there as %q", how, got)
	}
	s.gate.came()
	_, err := create(t, s.Client, s.pod, "refused", s.id, s.name)
	if err == nil || !strings.Contains(err.Error(), "pulling it for this one failed") || strings.Contains(err.Error(), "pass") {
		t.Errorf("%s: %v", how, err)
	}
	if users := s.gate.came(); slices.Contains(users, "ann") {
		t.Errorf("%s: tried as %q", how, users)
	}
	for _, name := range []string{s.name, s.id} {
		if got := idOf(t, s.Client, "", name); got != "" {
			t.Errorf("%s: %s is there as %s", how, name, got)
		}
	}
	if images(t, s.Client)[s.id] == nil {
		t.Errorf("%s: what is on the disk is not listed", how)
	}
}

func (s *secretImage) pulls(t *testing.T, password string) {
	t.Helper()
	got, err := pull(t, s.Client, s.pod, s.name, "bob", password)
	if err != nil || got != s.id {
		t.Fatalf("pulled %s, %v", got, err)
	}
}

func (s *secretImage) created(t *testing.T, how string) {
	t.Helper()
	if got := idOf(t, s.Client, "", s.name); got != s.id {
		t.Errorf("%s: it is there as %q", how, got)
	}
	id, err := create(t, s.Client, s.pod, "made", s.id, s.name)
	if err != nil {
		t.Fatalf("%s: %v", how, err)
	}
	if _, err := s.Client.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
}

// noSecrets looks for secrets in all that berth has written.
func noSecrets(t *testing.T, b *bed, secrets ...string) {
	t.Helper()
	for _, dir := range []string{b.Root, b.Dir} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // what ends meanwhile has no secrets
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // as above
			}
			for _, secret := range secrets {
				if bytes.Contains(content, []byte(secret)) {
					t.Errorf("%s has a secret", path)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
