package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const stranger = 12345

// wantUntrusted checks that a pull was refused because of who can change a file.
func wantUntrusted(t *testing.T, err error, says ...string) {
	t.Helper()
	if !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("error %v of class %v", err, errdefs.Resolve(err))
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in %v", s, err)
		}
	}
}

// TestChangeableHosts has registries whose configuration, or a file that it names,
// others than root can change. A pull from another registry goes on.
func TestChangeableHosts(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "f"})))
	for name, c := range map[string]struct {
		change func(dir, ca string) error
		want   string
	}{
		"hosts.toml for all":      {func(dir, _ string) error { return os.Chmod(dir+"/hosts.toml", 0o666) }, "run chmod o-w $D/hosts.toml"},
		"hosts.toml of another":   {func(dir, _ string) error { return os.Chown(dir+"/hosts.toml", stranger, 0) }, "run chown root $D/hosts.toml"},
		"directory for all":       {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "run chmod o-w $D"},
		"sticky directory":        {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, "run chmod o-w $D"},
		"all directories for all": {func(dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o777) }, "run chmod o-w"},
		"CA of another":           {func(_, ca string) error { return os.Chown(ca, stranger, 0) }, "ca.pem belongs to user 12345"},
		"certificate beside it": {func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/hosts.toml"), os.WriteFile(dir+"/a.crt", nil, 0o644), os.Chmod(dir+"/a.crt", 0o666))
		}, "run chmod o-w $D/a.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			ca := filepath.Join(t.TempDir(), "ca.pem")
			text, err := os.ReadFile(reg.ca)
			must(t, err)
			must(t, os.WriteFile(ca, text, 0o600))
			hosts := writeHosts(t, domain, fmt.Sprintf("[host.%q]\nca = [%q]\n", reg.URL, ca))
			s := openStore(t, Config{HostsDir: hosts})
			pullImage(t, s, domain+"/app:1")
			dir := filepath.Join(hosts, domain)
			must(t, c.change(dir, ca))
			_, err = s.Pull(t.Context(), PullRequest{Ref: domain + "/app:1"})
			wantUntrusted(t, err, domain+"/app:1", strings.ReplaceAll(c.want, "$D", dir))
			if len(s.List()) != 1 {
				t.Error("the image that was pulled before is gone")
			}
		})
	}
}

// TestChangeableVerifiers has verifiers that others than root can change or put away.
func TestChangeableVerifiers(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "f"})))
	for name, c := range map[string]struct {
		change func(above string) error
		want   string
	}{
		"program for all":     {func(above string) error { return os.Chmod(above+"/bin/a", 0o777) }, "chmod o-w"},
		"program of another":  {func(above string) error { return os.Chown(above+"/bin/a", stranger, 0) }, "chown root"},
		"directory for all":   {func(above string) error { return os.Chmod(above+"/bin", 0o777) }, "chmod o-w"},
		"sticky directory":    {func(above string) error { return os.Chmod(above+"/bin", 0o777|os.ModeSticky) }, "chmod o-w"},
		"put away by another": {func(above string) error { return errors.Join(os.RemoveAll(above+"/bin"), os.Chmod(above, 0o777)) }, "chmod o-w"},
	} {
		t.Run(name, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			must(t, os.MkdirAll(above+"/bin", 0o755))
			verifierProgram(t, above+"/bin", "a", "exit 0")
			s := openStore(t, Config{HostsDir: reg.hosts(t), Verifiers: verifiers(above + "/bin")})
			pullImage(t, s, domain+"/app:1")
			must(t, c.change(above))
			_, err := s.Pull(t.Context(), PullRequest{Ref: domain + "/app:1"})
			wantUntrusted(t, err, "image verifier", c.want)
		})
	}
}

// TestChangeableKeys has keys that others than root can change.
func TestChangeableKeys(t *testing.T) {
	reg := newTestRegistry(t)
	private, public := keyPair(t)
	reg.push(t, "plain:1", build(t, v1.Config{}, layer(t, file{name: "f"})))
	reg.push(t, "app:1", encrypt(t, layered(t, v1.Config{}), public))
	for name, c := range map[string]struct {
		change func(keys string) error
		want   string
	}{
		"key for all":       {func(keys string) error { return os.Chmod(keys+"/app.pem", 0o666) }, "chmod o-w"},
		"key of another":    {func(keys string) error { return os.Chown(keys+"/app.pem", stranger, 0) }, "chown root"},
		"directory for all": {func(keys string) error { return os.Chmod(keys, 0o777) }, "chmod o-w"},
	} {
		t.Run(name, func(t *testing.T) {
			keys := t.TempDir()
			must(t, os.WriteFile(keys+"/app.pem", private, 0o600))
			must(t, c.change(keys))
			s := openStore(t, Config{HostsDir: reg.hosts(t), DecryptionKeysDir: keys})
			_, err := s.Pull(t.Context(), PullRequest{Ref: domain + "/app:1"})
			wantUntrusted(t, err, "decryption keys", c.want)
			pullImage(t, s, domain+"/plain:1") // needs none
		})
	}
}
