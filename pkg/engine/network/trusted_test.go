package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

const stranger = 12345

// TestChangeableNetworks has configurations and plugins that users other than root can change. They
// are refused with the reason, except plugins that another user owns.
func TestChangeableNetworks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(conf, plugin string) error
		want   string
	}{
		"unchanged":                                  {func(string, string) error { return nil }, ""},
		"configuration writable by all":              {func(conf, _ string) error { return os.Chmod(conf, 0o666) }, "chmod o-w"},
		"configuration of another user":              {func(conf, _ string) error { return os.Chown(conf, stranger, 0) }, "chown root"},
		"directory writable by all":                  {func(conf, _ string) error { return os.Chmod(filepath.Dir(conf), 0o777) }, "chmod o-w"},
		"sticky directory":                           {func(conf, _ string) error { return os.Chmod(filepath.Dir(conf), 0o777|os.ModeSticky) }, "chmod o-w"},
		"plugin writable by all":                     {func(_, plugin string) error { return os.Chmod(plugin, 0o777) }, "chmod o-w"},
		"plugins' directory writable by all":         {func(_, plugin string) error { return os.Chmod(filepath.Dir(plugin), 0o777) }, "chmod o-w"},
		"plugin of another user, as from an archive": {func(_, plugin string) error { return os.Chown(plugin, stranger, stranger) }, ""},
		"plugins' directory of another user":         {func(_, plugin string) error { return os.Chown(filepath.Dir(plugin), stranger, stranger) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.script("plugin", "exit 1")
			n.configure("a.conflist", `{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "plugin"}]}`)
			p := New(n.config)
			conf, plugin := filepath.Join(n.config.ConfDir, "a.conflist"), filepath.Join(n.config.BinDirs[0], "plugin")
			test.Must(t, test.Err(p.networks(t.Context(), "")))
			test.Must(t, c.change(conf, plugin))
			_, err := p.networks(t.Context(), "") // these Plugins have read the configuration before
			_, first := New(n.config).networks(t.Context(), "")
			for _, err := range []error{err, first} {
				if c.want != "" {
					checkError(t, err, errdefs.IsUnavailable, "cni plugin not initialized", c.want)
				} else if err != nil {
					t.Error(err)
				}
			}
			if strings.HasPrefix(name, "plugin") {
				if _, err := (&pluginExec{}).FindInPath("plugin", n.config.BinDirs); (err == nil) != (c.want == "") {
					t.Errorf("FindInPath returns %v", err)
				}
			}
		})
	}
}
