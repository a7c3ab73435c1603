package ocispec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

// TestChangeableProfile has profiles of the node that users other than root can change. Profiles
// that others can write or replace are refused; a profile that an operator owns is used.
func TestChangeableProfile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files to another user needs root")
	}
	n := test.Value(DetectNode())(t)
	for name, c := range map[string]struct {
		change func(file string) error
		want   string
	}{
		"unchanged":                 {func(string) error { return nil }, ""},
		"writable by all":           {func(file string) error { return os.Chmod(file, 0o666) }, "chmod o-w"},
		"directory writable by all": {func(file string) error { return os.Chmod(filepath.Dir(file), 0o777) }, "chmod o-w"},
		"owned by an operator":      {func(file string) error { return os.Chown(file, 65535, 65535) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "profile.json")
			test.Must(t, os.WriteFile(file, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600))
			test.Must(t, c.change(file))
			_, err := localSeccomp(file, n)
			if c.want == "" && err != nil || c.want != "" && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
