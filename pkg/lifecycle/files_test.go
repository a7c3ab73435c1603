package lifecycle

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
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
		if got := watched(paths, func(p string) bool { return slices.Contains(c.exist, p) }); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
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
		if got := relevant(fsnotify.Event{Name: c.name, Op: c.op}, paths); got != c.want {
			t.Errorf("%s %s: %v", c.op, c.name, got)
		}
	}
}

// Changes of many kinds are told, in directories that exist from the beginning
// and in those that come later; one burst is told few times.
func TestFilesAreWatched(t *testing.T) {
	dir := t.TempDir()
	main, dropIns, vendor := filepath.Join(dir, "berth", "config.toml"), filepath.Join(dir, "berth", "conf.d"), filepath.Join(dir, "lib", "berth", "conf.d")
	if err := os.MkdirAll(filepath.Dir(main), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 1000)
	f := &files{
		watcher: w, paths: func() []string { return []string{main, dropIns, vendor} },
		changed: func() { told <- struct{}{} }, failed: func(err error) { t.Error(err) },
	}
	f.add()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	defer func() { cancel(); <-done }()

	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"the main file comes", func() { write(main) }},
		{"it is written in place", func() { write(main) }},
		{"an editor renames over it", func() { write(main + ".new"); rename(main+".new", main) }},
		{"conf.d comes with a file", func() {
			if err := os.Mkdir(dropIns, 0o755); err != nil {
				t.Fatal(err)
			}
			write(filepath.Join(dropIns, "a.toml"))
		}},
		{"a file in conf.d, which came later", func() { write(filepath.Join(dropIns, "b.toml")) }},
		{"the vendor's directory comes, three levels deep", func() {
			if err := os.MkdirAll(vendor, 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		{"a file of the vendor's", func() { write(filepath.Join(vendor, "v.toml")) }},
		{"conf.d is moved away", func() { rename(dropIns, dropIns+".old") }},
		{"another takes its place", func() { rename(dropIns+".old", dropIns) }},
		{"a file in that one", func() { write(filepath.Join(dropIns, "c.toml")) }},
		{"a file goes", func() {
			if err := os.Remove(filepath.Join(dropIns, "a.toml")); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		step.do()
		select {
		case <-told:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: nobody is told", step.what)
		}
		// What the step did may take more than one telling.
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
	time.Sleep(3 * quiet)
	if n := len(told); n > 100 {
		t.Errorf("500 writes in a row were told %d times", n+1)
	}
}
