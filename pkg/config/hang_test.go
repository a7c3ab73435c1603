package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// dead returns a directory whose file system does not respond.
func dead(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	deadMount(t, dir)
	return dir
}

// bounded returns the result of f. It fails the test if f takes a minute.
func bounded[T any](t *testing.T, what string, f func() T) T {
	t.Helper()
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case got := <-done:
		return got
	case <-time.After(time.Minute):
		t.Fatalf("%s takes more than a minute", what)
		panic("unreachable")
	}
}

// TestDeadMounts: a drop-in that links to an unresponsive file system is a mistake, an imported
// directory there affects only its own handlers, and Load waits for neither.
func TestDeadMounts(t *testing.T) {
	t.Parallel()
	gone := dead(t)
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain+"[import]\ncrio = [\""+filepath.Join(gone, "crio.conf.d")+"\"]\n")
	cfg := bounded(t, "a start", n.load)
	if names(cfg) != "crun runc" || !strings.Contains(cfg.Problems.Error(), filepath.Join(gone, "crio.conf.d")+": cannot be read: stat timed out: is it on an unreachable network file system") {
		t.Errorf("served are %s, problems %s", names(cfg), cfg.Problems)
	}
	for _, name := range []string{"10-dead", "11-dead"} {
		n.must(os.Symlink(filepath.Join(gone, name), n.path("conf.d/"+name+".toml")))
	}
	n.write("conf.d/20-good.toml", "[runtimes.extra]\nruntime_path = \"$BIN/crun\"\n")
	lines := bounded(t, "a reload", func() []string { return n.refuse(n.options()) })
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "$DIR/conf.d/10-dead.toml: cannot be read") || !strings.HasPrefix(lines[1], "$DIR/conf.d/11-dead.toml: cannot be read") {
		t.Errorf("a reload fails with\n%s", strings.Join(lines, "\n"))
	}
	one := bounded(t, "a fingerprint", func() string { print, _ := hostfiles.Fingerprint(cfg.Watched()); return print })
	n.write("conf.d/20-good.toml", "[runtimes.other]\nruntime_path = \"$BIN/crun\"\n")
	other, links := hostfiles.Fingerprint(cfg.Watched())
	if one == other || !links {
		t.Errorf("the fingerprint misses a change in a directory with a dead link (links: %v)", links)
	}
}

// An unresponsive directory of drop-ins is one mistake.
func TestDeadDirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	o := n.options()
	o.DropInDir = dead(t)
	lines := bounded(t, "a reload", func() []string { return n.refuse(o) })
	if len(lines) != 1 || !strings.Contains(lines[0], "cannot be listed: stat timed out") {
		t.Errorf("Load fails with %q", lines)
	}
}
