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

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

const stranger = 12345 // a user ID

// TestChangeableHosts pulls from a registry whose configuration, or a file that it names, a user
// other than root can change. The pull is refused; earlier images stay.
func TestChangeableHosts(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", small(t))
	for name, c := range map[string]struct {
		change func(dir, ca string) error
		want   string
	}{
		"world-writable hosts.toml":       {func(dir, _ string) error { return os.Chmod(dir+"/hosts.toml", 0o666) }, "run chmod o-w $D/hosts.toml"},
		"hosts.toml of another user":      {func(dir, _ string) error { return os.Chown(dir+"/hosts.toml", stranger, 0) }, "run chown root $D/hosts.toml"},
		"world-writable directory":        {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "run chmod o-w $D"},
		"sticky world-writable directory": {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, "run chmod o-w $D"},
		"world-writable parent directory": {func(dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o777) }, "run chmod o-w"},
		"CA of another user":              {func(_, ca string) error { return os.Chown(ca, stranger, 0) }, "ca.pem belongs to user 12345"},
		"world-writable certificate": {func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/hosts.toml"), os.WriteFile(dir+"/a.crt", nil, 0o644), os.Chmod(dir+"/a.crt", 0o666))
		}, "run chmod o-w $D/a.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			ca := filepath.Join(t.TempDir(), "ca.pem")
			text := test.Value(os.ReadFile(reg.ca))(t)
			test.Must(t, os.WriteFile(ca, text, 0o600))
			hosts := writeHosts(t, domain, fmt.Sprintf("[host.%q]\nca = [%q]\n", reg.URL, ca))
			s := openStore(t, Config{HostsDir: hosts})
			pullImage(t, s, app)
			dir := filepath.Join(hosts, domain)
			test.Must(t, c.change(dir, ca))
			test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), errdefs.IsFailedPrecondition, app, strings.ReplaceAll(c.want, "$D", dir))
			if len(s.List()) != 1 {
				t.Error("the image that was pulled before is gone")
			}
		})
	}
}

// TestChangeableFiles pulls while a user other than root can change or remove the verifiers or the
// decryption keys. The pulls are refused.
func TestChangeableFiles(t *testing.T) {
	private, public := keyPair(t)
	reg := newTestRegistry(t)
	reg.push(t, "plain:1", small(t))
	reg.push(t, "app:1", encrypt(t, layered(t, v1.Config{}), public))
	verifier := func(dir string) Config {
		verifierProgram(t, dir, "a", "exit 0")
		return Config{Verifiers: verifiers(dir)}
	}
	key := func(dir string) Config {
		test.Must(t, os.WriteFile(dir+"/a", private, 0o600))
		return Config{DecryptionKeysDir: dir}
	}
	forAll := func(path string, mode os.FileMode) func(string) error {
		return func(above string) error { return os.Chmod(above+path, mode) }
	}
	ofAnother := func(above string) error { return os.Chown(above+"/dir/a", stranger, 0) }
	for name, c := range map[string]struct {
		config func(dir string) Config
		change func(above string) error
		says   []string
	}{
		"world-writable program":            {verifier, forAll("/dir/a", 0o777), []string{"image verifier", "chmod o-w"}},
		"program of another user":           {verifier, ofAnother, []string{"image verifier", "chown root"}},
		"world-writable programs directory": {verifier, forAll("/dir", 0o777), []string{"image verifier", "chmod o-w"}},
		"sticky programs directory":         {verifier, forAll("/dir", 0o777|os.ModeSticky), []string{"image verifier", "chmod o-w"}},
		"programs directory is missing":     {verifier, func(above string) error { return errors.Join(os.RemoveAll(above+"/dir"), os.Chmod(above, 0o777)) }, []string{"image verifier", "chmod o-w"}},
		"world-writable key":                {key, forAll("/dir/a", 0o666), []string{"decryption keys", "chmod o-w"}},
		"key of another user":               {key, ofAnother, []string{"decryption keys", "chown root"}},
		"world-writable keys directory":     {key, forAll("/dir", 0o777), []string{"decryption keys", "chmod o-w"}},
	} {
		t.Run(name, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			test.Must(t, os.MkdirAll(above+"/dir", 0o755))
			config := c.config(above + "/dir")
			config.HostsDir = reg.hosts(t)
			s := openStore(t, config)
			pullImage(t, s, domain+"/plain:1")
			test.Must(t, c.change(above))
			test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), errdefs.IsFailedPrecondition, c.says...)
			if config.DecryptionKeysDir != "" {
				pullImage(t, s, domain+"/plain:1") // needs no key
			}
		})
	}
}
