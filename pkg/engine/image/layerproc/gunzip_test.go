package layerproc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

// TestIgzip replaces igzip by other programs.
func TestIgzip(t *testing.T) {
	_, gzipped, _ := packed(t, 2*worthProcess)
	for name, c := range map[string]struct {
		program string
		is      func(error) bool
		says    string
	}{
		"rights":                     {"#!/bin/sh\necho $(id -u) $(grep -cE '^(CapEff:.0*|NoNewPrivs:.1)$' /proc/self/status) >&2; exit 1\n", errdefs.IsInvalidArgument, "igzip: 65534 2"},
		"network":                    {"#!/bin/sh\necho $(grep -c : /proc/net/dev) >&2; exit 1\n", errdefs.IsInvalidArgument, "igzip: 1:"},
		"killed first out of memory": {"#!/bin/sh\nsleep .3; cat /proc/self/oom_score_adj >&2; exit 1\n", errdefs.IsInvalidArgument, "igzip: 1000"},
		"killed":                     {"#!/bin/sh\nkill -9 $$\n", errdefs.IsUnavailable, "killed"},
		"not executable":             {"\x7fELF", nil, ""},
		"exits with an error":        {"#!/bin/sh\necho broken >&2; exit 3\n", errdefs.IsInvalidArgument, "igzip: broken"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "igzip-") // t.TempDir is not readable by igzip's user
			test.Must(t, err)
			t.Cleanup(func() { test.Must(t, os.RemoveAll(dir)) })
			test.Must(t, os.Chmod(dir, 0o755))
			test.Must(t, os.WriteFile(filepath.Join(dir, "igzip"), []byte(c.program), 0o755)) //nolint:gosec // it is executed
			t.Setenv("PATH", dir)
			_, err = start(t, usualMemory).Unpack(t.Context(), Layer{Root: t.TempDir(), Count: all}, blobOf(t, gzipped))
			if c.is == nil && err != nil || c.is != nil && (!c.is(err) || !strings.Contains(err.Error(), c.says)) {
				t.Error(err)
			}
		})
	}
}
