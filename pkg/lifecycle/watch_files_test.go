package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/log"
	"github.com/fsnotify/fsnotify"

	"github.com/berth-cri/berth/internal/test"
)

func TestWatchedDirectories(t *testing.T) {
	paths := []string{"/etc/berth/config.toml", "/etc/berth/conf.d", "/usr/lib/berth/conf.d"}
	for name, c := range map[string]struct{ exist, want []string }{
		"all there":  {[]string{"/etc/berth", "/etc/berth/conf.d", "/usr/lib/berth", "/usr/lib/berth/conf.d"}, []string{"/etc/berth", "/etc/berth/conf.d", "/usr/lib/berth/conf.d", "/usr/lib/berth"}},
		"no conf.d":  {[]string{"/etc/berth", "/usr/lib", "/usr"}, []string{"/etc/berth", "/usr/lib"}},
		"nothing":    {[]string{"/"}, []string{"/"}},
		"no vendor":  {[]string{"/etc/berth", "/etc/berth/conf.d", "/"}, []string{"/etc/berth", "/etc/berth/conf.d", "/"}},
		"no root fs": {nil, []string{"/"}},
	} {
		test.EqualLists(t, name, watched(paths, func(p string) bool { return slices.Contains(c.exist, p) }), c.want)
	}
}

func TestRelevantEvents(t *testing.T) {
	paths := []string{"/etc/berth/config.toml", "/etc/berth/conf.d", "/usr/lib/berth/conf.d"}
	for _, c := range []struct {
		name string
		op   fsnotify.Op
		want bool
	}{
		{"/etc/berth/config.toml", fsnotify.Write, true},
		{"/etc/berth/config.toml", fsnotify.Chmod, false},
		{"/etc/berth/.config.toml.swp", fsnotify.Write, false},
		{"/etc/berth/other.toml", fsnotify.Write, false},
		{"/etc/berth/..data", fsnotify.Create, true},
		{"/etc/berth/conf.d", fsnotify.Create, true},
		{"/etc/berth/conf.d/kata.toml", fsnotify.Remove, true},
		{"/etc/berth/conf.d/kata.toml~", fsnotify.Create, true},
		{"/etc/berth/conf.d/.kata.toml.x", fsnotify.Write, false},
		{"/etc/berth/conf.d/..data", fsnotify.Rename, true},
		{"/usr/lib/berth", fsnotify.Create, true},
		{"/usr/lib/berthold", fsnotify.Create, false},
		{"/usr/lib/libc.so", fsnotify.Create, false},
	} {
		test.Equal(t, fmt.Sprintf("%s %s", c.op, c.name), relevant(fsnotify.Event{Name: c.name, Op: c.op}, paths), c.want)
	}
}

// Changes of many kinds are reported, in directories that exist at the start and
// in those created later. A burst of writes causes only a few reports.
func TestFilesAreWatched(t *testing.T) {
	dir := t.TempDir()
	main, dropIns, vendor := filepath.Join(dir, "berth", "config.toml"), filepath.Join(dir, "berth", "conf.d"), filepath.Join(dir, "lib", "berth", "conf.d")
	test.Must(t, os.MkdirAll(filepath.Dir(main), 0o755))
	w := test.Value(fsnotify.NewWatcher())(t)
	told := make(chan struct{}, 1000)
	f := &files{
		watcher: w, paths: func() []string { return []string{main, dropIns, vendor} },
		changed: func() { told <- struct{}{} }, polls: &atomic.Bool{}, log: log.L,
	}
	defer func() {
		if f.polls.Load() {
			t.Error("files are polled although inotify works")
		}
	}()
	f.add()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	defer func() { cancel(); <-done }()

	write := func(path string) {
		t.Helper()
		test.Must(t, os.WriteFile(path, []byte("x"), 0o600))
	}
	rename := func(from, to string) {
		t.Helper()
		test.Must(t, os.Rename(from, to))
	}
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"the main file is created", func() { write(main) }},
		{"the main file is written in place", func() { write(main) }},
		{"an editor replaces the main file", func() { write(main + ".new"); rename(main+".new", main) }},
		{"conf.d is created with a file", func() {
			test.Must(t, os.Mkdir(dropIns, 0o755))
			write(filepath.Join(dropIns, "a.toml"))
		}},
		{"another file in the new conf.d is created", func() { write(filepath.Join(dropIns, "b.toml")) }},
		{"the vendor's directory is created, three levels deep", func() {
			test.Must(t, os.MkdirAll(vendor, 0o755))
		}},
		{"a file of the vendor is created", func() { write(filepath.Join(vendor, "v.toml")) }},
		{"conf.d is moved away", func() { rename(dropIns, dropIns+".old") }},
		{"conf.d is moved back", func() { rename(dropIns+".old", dropIns) }},
		{"a file in this conf.d is created", func() { write(filepath.Join(dropIns, "c.toml")) }},
		{"a file is removed", func() {
			test.Must(t, os.Remove(filepath.Join(dropIns, "a.toml")))
		}},
	} {
		step.do()
		select {
		case <-told:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the change is not reported", step.what)
		}
		// One step may cause more than one report.
		for quietFor := 3 * quiet; ; {
			select {
			case <-told:
				continue
			case <-time.After(quietFor):
			}
			break
		}
	}
	for range 500 {
		write(main)
	}
	<-told
	time.Sleep(3 * quiet) // for late events of inotify
	if n := len(told); n > 100 {
		t.Errorf("500 writes in a row were reported %d times", n+1)
	}
}

// Changes behind links are found by polling, since inotify does not report them.
func TestFilesBehindLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		do := func(err error) {
			t.Helper()
			test.Must(t, err)
		}
		write := func(name, text string) {
			t.Helper()
			do(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
			do(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		// As the kubelet mounts a ConfigMap: files are links through ..data.
		write("map/..one/kata.toml", "one")
		write("map/..two/kata.toml", "another")
		do(os.Symlink("..one", filepath.Join(dir, "map/..data")))
		do(os.Symlink("..data/kata.toml", filepath.Join(dir, "map/kata.toml")))
		write("conf.d/local.toml", "x")
		do(os.Symlink("../map/kata.toml", filepath.Join(dir, "conf.d/kata.toml")))
		do(os.Symlink("../later/late.toml", filepath.Join(dir, "conf.d/late.toml")))
		told := make(chan struct{}, 100)
		f := &files{
			watcher: &fsnotify.Watcher{}, paths: func() []string { return []string{filepath.Join(dir, "conf.d")} },
			differs: func() { told <- struct{}{} }, polls: &atomic.Bool{}, log: log.L, interval: 20 * time.Millisecond,
		}
		f.look()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.poll(ctx) }()
		defer func() { cancel(); <-done }()
		for _, step := range []struct {
			what string
			do   func()
		}{
			{"..data is swapped", func() {
				do(os.Symlink("..two", filepath.Join(dir, "map/..tmp")))
				do(os.Rename(filepath.Join(dir, "map/..tmp"), filepath.Join(dir, "map/..data")))
			}},
			{"the target is written", func() { write("map/..two/kata.toml", "yet another") }},
			{"the target is removed", func() { do(os.Remove(filepath.Join(dir, "map/..two/kata.toml"))) }},
			{"a missing target is created", func() { write("later/late.toml", "late") }},
		} {
			step.do()
			time.Sleep(5 * f.interval)
			synctest.Wait()
			if len(told) == 0 {
				t.Fatalf("%s: the change is not reported", step.what)
			}
			for len(told) > 0 { // one step may cause more than one report
				<-told
			}
		}
	})
}

// asUserWithoutInotify is set in the environment of the child process, which cannot use inotify.
const asUserWithoutInotify = "BERTH_TEST_WITHOUT_INOTIFY"

// Without inotify, files are polled.
func TestFilesWithoutInotify(t *testing.T) {
	if os.Getenv(asUserWithoutInotify) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFilesWithoutInotify$", "-test.v")
		cmd.Env = append(os.Environ(), asUserWithoutInotify+"=1")
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	// This sets the limit of this user namespace only.
	test.Must(t, os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0))
	start := conf("runc", "/r")
	start.Handlers.Watch = true
	b := newBed(t, start)
	b.wait("the first load", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.loads > 0 })
	if !b.m.reloads.polls.Load() {
		t.Fatal("files are not reported as polled")
	}
	b.set(func() { b.next = conf("runc", "/r", "kata", "/k") })
	test.Must(t, os.WriteFile(b.Paths()[0], []byte("changed"), 0o600))
	b.wait("the change", func() bool { return b.phase("kata") != "" })
	b.wait("the reload is announced", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return slices.Contains(b.announced, "reloaded") })
}
