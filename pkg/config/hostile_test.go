package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// TestHostileDropIns: whatever is in its directories, a daemon that starts
// reads a bounded amount, does not block, and names the files that it refuses.
// Root can read files of mode 0, so the unreadable files here fail to open or
// to read in other ways.
func TestHostileDropIns(t *testing.T) {
	for _, c := range []struct {
		what string
		make func(n *node, path string)
		// want is the problem after the file's name.
		want string
	}{
		{"dangling link", func(n *node, path string) { n.link("/nowhere/at/all", path) }, "is a link to /nowhere/at/all, which does not exist"},
		{"link to itself", func(n *node, path string) { n.link(path, path) }, "cannot be read: too many levels of symbolic links"},
		{"link to a directory", func(n *node, path string) { n.link("/etc", path) }, "must be a file, not a directory"},
		{"link to /dev/zero", func(n *node, path string) { n.link("/dev/zero", path) }, "must be a file, not a device"},
		{"link through a file", func(n *node, path string) { n.link("/dev/null/x", path) }, "cannot be read: not a directory"},
		{"link to a long name", func(n *node, path string) { n.link("/"+strings.Repeat("x", 300), path) }, "cannot be read: file name too long"},
		{"memory of a process", func(n *node, path string) { n.link("/proc/self/mem", path) }, "cannot be read: input/output error"},
		{"fifo", func(n *node, path string) { n.must(unix.Mkfifo(path, 0o600)) }, "must be a file, not a named pipe"},
		{"socket", func(n *node, path string) { n.socket(path) }, "must be a file, not a socket"},
		{"huge", func(n *node, path string) { n.must(os.Truncate(n.empty(path), 1<<40)) }, "has 1099511627776 bytes; the limit for a configuration file is 1048576"},
		{"zeros", func(n *node, path string) { n.must(os.Truncate(n.empty(path), 1000)) }, "1:1: "},
		{"machine code", func(n *node, path string) { n.fill(path, "\x7fELF\x02\x01\x01\x00\xff\xfe") }, "1:1: "},
		{"zero byte in a string", func(n *node, path string) { n.fill(path, "[log]\nlevel = \"a\x00b\"\n") }, "2:"},
		{"bad UTF-8", func(n *node, path string) { n.fill(path, "[log]\nlevel = \"\xff\"\n") }, "2:"},
		{"UTF-16", func(n *node, path string) { n.fill(path, "\xff\xfe[\x00l\x00o\x00g\x00]\x00") }, "1:1: "},
		{"deep lists", func(n *node, path string) { n.fill(path, "x = "+strings.Repeat("[", 1<<14)) }, "1:"},
		{"deep key", func(n *node, path string) { n.fill(path, strings.Repeat("a.", 1<<13)+"a = 1") }, "1:1: a.a.a: is nested more than 32 levels deep; no valid key is"},
		{"deep table", func(n *node, path string) { n.fill(path, "["+strings.Repeat("a.", 1<<13)+"a]") }, "1:2: a.a.a: is nested more than 32 levels deep; no valid key is"},
		{"deep options", func(n *node, path string) {
			n.fill(path, "[runtimes.a]\nruntime_path = \""+n.path("bin/containerd-shim-kata-v2")+"\"\noptions."+strings.Repeat("a.", 1<<13)+"a = 1")
		}, "3:1: options.a.a: is nested more than 32 levels deep; no valid key is"},
		{"deep inline tables", func(n *node, path string) { n.fill(path, "x = "+strings.Repeat("{a=", 40)+"1"+strings.Repeat("}", 40)) },
			"1:1: x: is nested more than 32 levels deep; no valid key is"},
		{"many tables", func(n *node, path string) { n.fill(path, strings.Repeat("[[a]]\n[a.b]\n", 1<<10)) }, "1:3: a: unknown key"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newNode(t, "runc", "crun", "containerd-shim-kata-v2")
			n.write("config.toml", goodMain+"[import]\ncrio = [\""+n.path("crio")+"\"]\ncontainerd = [\""+n.path("cd")+"\"]\n")
			n.write("conf.d/90-good.toml", "[runtimes.extra]\nruntime_path = \"$BIN/crun\"\n")
			n.write("crio/90-good", "[crio.runtime.runtimes.other]\nruntime_path = \"$BIN/crun\"\n")
			n.must(os.Mkdir(n.path("cd"), 0o755))
			for _, dir := range []string{"crio", "cd"} {
				c.make(n, n.path(dir+"/50-bad.toml"))
			}
			cfg := within(t, n.load)
			test.Equal(t, "served", names(cfg), "crun extra other runc")
			problems := n.relative(cfg.Problems.Error())
			for _, dir := range []string{"crio", "cd"} {
				if strings.Contains(c.want, "unknown key") {
					continue // imports read only tables of handlers
				}
				if want := "$DIR/" + dir + "/50-bad.toml:" + spaced(c.want); !strings.Contains(problems, want) {
					t.Errorf("no problem is %q:\n%s", want, problems)
				}
			}
			c.make(n, n.path("conf.d/50-bad.toml"))
			refused := strings.Join(bounded(t, "a load", func() []string { return n.refuse(n.options()) }), "\n")
			if want := "$DIR/conf.d/50-bad.toml:" + spaced(c.want); !strings.Contains(refused, want) {
				t.Errorf("no problem is %q:\n%s", want, refused)
			}
		})
	}
}

// spaced returns want as it follows "file:": a text has a space before it, a line number does not.
func spaced(want string) string {
	if want[0] >= '0' && want[0] <= '9' {
		return want
	}
	return " " + want
}

// within fails the test if load takes a minute.
func within(t *testing.T, load func() *Config) *Config {
	t.Helper()
	loaded := make(chan *Config, 1)
	go func() {
		defer close(loaded)
		loaded <- load()
	}()
	select {
	case cfg := <-loaded:
		if cfg == nil {
			t.FailNow()
		}
		return cfg
	case <-time.After(time.Minute):
		t.Fatal("load takes more than a minute")
		return nil
	}
}

func TestDirectoriesHaveAnEnd(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	for i := range hostfiles.MaxFiles {
		n.raw(fmt.Sprintf("conf.d/%04d.toml", i), fmt.Sprintf("[runtimes.h%04d]\nruntime_path = %q\n", i, n.path("bin/runc")), 0o644)
	}
	if got := len(within(t, n.load).Runtimes); got != hostfiles.MaxFiles+2 {
		t.Errorf("%d handlers are served", got)
	}
	for i := hostfiles.MaxFiles; i < hostfiles.MaxFiles+5; i++ {
		n.raw(fmt.Sprintf("conf.d/%04d.toml", i), fmt.Sprintf("[runtimes.h%04d]\nruntime_path = %q\n", i, n.path("bin/runc")), 0o644)
	}
	want := "$DIR/conf.d: has 1005 configuration files; only the first 1000 are read, up to 0999.toml; remove those that are not needed"
	test.EqualLists(t, "problems", n.refuse(n.options()), []string{want})
}

func TestDropInsHaveATotalSize(t *testing.T) {
	n := newNode(t)
	var files []string
	for i := range 10 {
		files = append(files, n.path(fmt.Sprintf("%s/%d.toml", []string{"conf.d", "vendor"}[i%2], i)))
		n.fill(files[i], strings.Repeat("#", hostfiles.MaxFileSize))
	}
	for i, d := range readEach(files, nil, parse) {
		refused := len(d.Problems) == 1 && strings.Contains(d.Problems.Error(), "is skipped: the files up to this one have more than 8388608 bytes in total")
		if refused != (i > 7) {
			t.Errorf("file %d: %v", i, d.Problems)
		}
	}
}

// TestFileThatChangesWhileItIsRead: Load reads the file again, or reports that it changed. An empty
// file is valid, and read as such if its content comes only after the read. The file is smaller than
// a page, so a single write is never read in part.
func TestFileThatChangesWhileItIsRead(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", goodMain)
	file := n.path("conf.d/10.toml")
	table := func(name string) string {
		return "[runtimes." + name + "]\nruntime_path = \"" + n.path("bin/crun") + "\"\n"
	}
	whole := table("begin") + strings.Repeat("# the middle of it\n", 100) + table("extra")
	n.raw("conf.d/10.toml", whole, 0o644)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(file, []byte(whole), 0o600) // truncates first, as a careless writer does
			}
		}
	}()
	for range 500 {
		cfg, err := Load(n.options())
		if err == nil && !slices.Contains([]string{"begin crun extra runc", "crun runc"}, names(cfg)) || err != nil && !strings.HasSuffix(err.Error(), "changed while it was read; write it under another name and rename it") {
			t.Fatalf("served are %s, error %v", names(cfg), err)
		}
	}
	close(stop)
	<-stopped
	if cfg := n.load(); names(cfg) != "begin crun extra runc" {
		t.Errorf("served are %s", names(cfg))
	}
}

// TestFileThatGoesAway: a file that is removed after the listing is not a mistake.
func TestFileThatGoesAway(t *testing.T) {
	if docs := readEach([]string{filepath.Join(t.TempDir(), "gone.toml")}, nil, parse); len(docs) != 0 {
		t.Errorf("the missing file is read as %+v", docs[0])
	}
}

func (n *node) must(err error) {
	n.t.Helper()
	test.Must(n.t, err)
}

func (n *node) link(to, path string) {
	n.t.Helper()
	n.must(os.Symlink(to, path))
}

func (n *node) fill(path, content string) {
	n.t.Helper()
	n.must(os.WriteFile(path, []byte(content), 0o600))
}

func (n *node) empty(path string) string {
	n.t.Helper()
	n.fill(path, "")
	return path
}

func (n *node) socket(path string) {
	n.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(n.t.Context(), "unix", path)
	n.must(err)
	n.t.Cleanup(func() { l.Close() })
}
