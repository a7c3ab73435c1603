package remote

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// A pod whose image is in another store, pulled there with the secrets of another pod, gets it with its
// own only: the image is not there for the kubelet, which pulls it.
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
	s.gate.came()
	s.absent(t)
	if _, err := create(t, s.Client, s.pod, "refused", s.id, s.name); err == nil {
		t.Error("created without a pull")
	}
	if _, err := pull(t, s.Client, s.pod, s.name, "bob", "annspass"); err == nil {
		t.Error("pulled with a wrong secret")
	}
	s.absent(t)
	if users := s.gate.came(); slices.Contains(users, "ann") {
		t.Errorf("tried as %q", users)
	}
	if got, err := pull(t, s.Client, s.pod, s.name, "bob", "bobspass"); err != nil || got != s.id {
		t.Fatalf("pulled %s, %v", got, err)
	}
	if _, err := create(t, s.Client, s.pod, "made", s.id, s.name); err != nil {
		t.Error(err)
	}
	s.gate.came()
	if err := remove(t, s.daemon.Client, s.id); err == nil {
		s.absent(t)
	}
	if users := s.gate.came(); len(users) > 0 {
		t.Errorf("berth has pulled by itself as %q", users)
	}
}

// absent fails unless the image is not there for a kubelet, and is listed.
func (s *secretImage) absent(t *testing.T) {
	t.Helper()
	for _, name := range []string{s.name, s.id} {
		if got := idOf(t, s.Client, "", name); got != "" {
			t.Errorf("%s is there as %s", name, got)
		}
	}
	if images(t, s.Client)[s.id] == nil {
		t.Error("what is on the disk is not listed")
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
