package featurefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

const patience = 30 * time.Second

// bed is a features.d directory and the current content.
type bed struct {
	dir, path string
	changes   chan struct{}

	mu  sync.Mutex
	now Content
}

func newBed(t *testing.T, parent string) *bed {
	t.Helper()
	b := &bed{dir: filepath.Join(parent, "features.d"), changes: make(chan struct{}, 1), now: content("a/runc=ready", "a/crun=ready")}
	b.path = filepath.Join(b.dir, "berth")
	return b
}

func (b *bed) make(t *testing.T) {
	t.Helper()
	test.Must(t, os.Mkdir(b.dir, 0o755))
}

func (b *bed) start(t *testing.T, lifetime time.Duration) *Keeper {
	t.Helper()
	k := New(Options{Path: b.path, Lifetime: lifetime, Content: func() Content {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.now
	}})
	Start(t.Context(), k, b.changes)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		test.Check(t, k.Close(ctx))
	})
	return k
}

// is sets the current content and notifies the Keeper.
func (b *bed) is(c Content) {
	b.mu.Lock()
	b.now = c
	b.mu.Unlock()
	select {
	case b.changes <- struct{}{}:
	default:
	}
}

// labels returns the labels in the file, or "none" if the file does not exist.
func (b *bed) labels(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "none"
	}
	test.Must(t, err)
	var all []string
	skip := false
	for line := range strings.Lines(string(text)) {
		if !skip && !strings.HasPrefix(line, "#") {
			all = append(all, strings.TrimSpace(line))
		}
		skip = strings.HasPrefix(line, noLabel)
	}
	return strings.Join(all, " ")
}

func (b *bed) wait(t *testing.T, want string) {
	t.Helper()
	test.Retry(t, func() error {
		if got := b.labels(t); got != want {
			return fmt.Errorf("the file has %q, want %q", got, want)
		}
		return nil
	})
}

// metrics waits until berth_node_labels_current is want; "" means that the metric does not exist.
func metrics(t *testing.T, k *Keeper, want string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(k)
	test.Retry(t, func() error {
		families := test.Value(registry.Gather())(t)
		got := ""
		for _, f := range families {
			if f.GetName() == "berth_node_labels_current" {
				got = fmt.Sprint(f.GetMetric()[0].GetGauge().GetValue())
			}
		}
		if got != want {
			return fmt.Errorf("the metric is %q, want %q", got, want)
		}
		return nil
	})
}

func TestKeeper(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	k := b.start(t, time.Hour)
	metrics(t, k, "")
	b.is(content("a/runc=ready"))
	if _, err := os.Stat(b.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the Keeper created the directory: %v", err)
	}
	b.make(t)
	b.is(content("a/runc=ready"))
	b.wait(t, "a/runc=ready")
	metrics(t, k, "1")
	info, err := os.Stat(b.path)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	// Of many changes, the file has the last one.
	for i := range 200 {
		b.is(content(fmt.Sprintf("a/n=%d", i)))
	}
	b.wait(t, "a/n=199")
	b.is(Content{})
	b.wait(t, "")

	// A removed or replaced file is written again, even if the content is the same.
	test.Must(t, os.Remove(b.path))
	b.changes <- struct{}{}
	b.wait(t, "")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	test.Must(t, errors.Join(os.Remove(b.path), os.WriteFile(elsewhere, []byte("mine"), 0o600), os.Symlink(elsewhere, b.path)))
	b.is(content("a/runc=ready"))
	test.Retry(t, func() error {
		if info, err := os.Lstat(b.path); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("the file is %v, %v", info, err)
		}
		return nil
	})
	test.Equal(t, "target of the link", test.File(t, elsewhere), "mine")
	for _, dir := range []string{b.dir, filepath.Dir(b.dir)} {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("%s has %v, %v", dir, entries, err)
		}
	}
}

// An unprobed handler keeps its labels of an earlier file until it is probed or that file
// expires. Once probed, it does not get them back.
func TestUndecided(t *testing.T) {
	t.Parallel()
	of := func(label string) string { return nodelabel.Prefix + "handler." + label }
	for name, c := range map[string]struct {
		age  time.Duration // of the earlier file
		want string
	}{
		"current": {0, of("kata=ready") + " " + of("runc=ready")},
		"expired": {2 * time.Hour, of("runc=ready")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, t.TempDir())
			b.make(t)
			text, _ := content(of("kata=ready"), of("crun=ready")).text(time.Now().Add(time.Hour - c.age))
			test.Must(t, os.WriteFile(b.path, []byte(text), 0o600))
			unknown := content(of("runc=ready"))
			unknown.Unprobed = []string{"kata"}
			b.now = unknown
			b.start(t, time.Hour)
			b.wait(t, c.want)
			b.is(content(of("runc=ready"))) // the probe of kata failed
			b.wait(t, of("runc=ready"))
			b.is(unknown)
			again := content(of("runc=ready"), of("crun=ready"))
			again.Unprobed = unknown.Unprobed
			b.is(again)
			b.wait(t, of("runc=ready")+" "+of("crun=ready"))
		})
	}
}

// Labels that are kept from an earlier file do not extend its expiry time. Otherwise a daemon
// that restarts again and again would keep them forever.
func TestUndecidedEnds(t *testing.T) {
	t.Parallel()
	of := func(label string) string { return nodelabel.Prefix + "handler." + label }
	b := newBed(t, t.TempDir())
	b.make(t)
	end := time.Now().Add(10 * time.Minute).Truncate(time.Second)
	text, _ := content(of("kata=ready")).text(end)
	test.Must(t, os.WriteFile(b.path, []byte(text), 0o600))
	b.now = content(of("runc=ready"))
	b.now.Unprobed = []string{"kata"}
	b.start(t, time.Hour)
	is := func(want func(time.Time) bool) {
		t.Helper()
		test.Retry(t, func() error {
			text, err := os.ReadFile(b.path)
			if got := expires(string(text)); err != nil || !want(got) {
				return fmt.Errorf("the file expires at %v, %v", got, err)
			}
			return nil
		})
	}
	b.wait(t, of("kata=ready")+" "+of("runc=ready"))
	is(end.Equal)
	b.is(content(of("kata=ready"), of("runc=ready")))
	is(end.Add(30 * time.Minute).Before)
}

// Lasting labels have a separate file without an expiry time.
func TestLasting(t *testing.T) {
	t.Parallel()
	parent := small(t, "size=64k")
	b := newBed(t, parent)
	b.make(t)
	now := content("a/runc=ready")
	now.Lasting = content("a/runc.present=true").Labels
	b.is(now)
	k := b.start(t, time.Hour)
	b.wait(t, "a/runc=ready")
	lasting := &bed{dir: b.dir, path: b.path + lastingSuffix}
	lasting.wait(t, "a/runc.present=true")
	if text, err := os.ReadFile(lasting.path); err != nil || strings.Contains(string(text), expiry) {
		t.Errorf("the file contains %q, %v", text, err)
	}
	now.Lasting = content("a/crun.present=true", "a/runc.present=true").Labels
	b.is(now)
	lasting.wait(t, "a/crun.present=true a/runc.present=true")

	// On a full disk, the labels "ready" are removed and the lasting ones stay.
	fill := filepath.Join(parent, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	b.is(Content{})
	b.wait(t, "")
	metrics(t, k, "0")
	lasting.wait(t, "a/crun.present=true a/runc.present=true")
	test.Must(t, os.Remove(fill))
	lasting.wait(t, "")
	metrics(t, k, "1")
}

// The worker of Node Feature Discovery reads the directory at an event and then waits for
// a second. So the first event of a change must come when the file is complete.
func TestChangeIsOneEvent(t *testing.T) {
	t.Parallel()
	b := newBed(t, t.TempDir())
	b.make(t)
	watcher := test.Value(fsnotify.NewWatcher())(t)
	defer watcher.Close() //nolint:errcheck // it only reads
	test.Must(t, watcher.Add(b.dir))
	b.start(t, time.Hour)
	// The first write is repeated: the worker may have missed it after an earlier event.
	for range 2 {
		select {
		case e := <-watcher.Events:
			if e.Name != b.path || e.Op != fsnotify.Create {
				t.Errorf("got the event %v", e)
			}
			if got := b.labels(t); got != "a/runc=ready a/crun=ready" {
				t.Errorf("at the event, the file has %q", got)
			}
		case <-time.After(patience):
			t.Fatal("no event")
		}
	}
	select {
	case e := <-watcher.Events:
		t.Errorf("got the event %v", e)
	case <-time.After(2 * repeatDelay):
	}
}

// The Keeper extends the expiry time of the file before the file expires.
func TestProlonged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, t.TempDir())
		b.make(t)
		const lifetime = 4 * time.Second
		k := b.start(t, lifetime)
		b.wait(t, "a/runc=ready a/crun=ready")
		until := func() time.Time {
			text := test.Value(os.ReadFile(b.path))(t)
			return expires(string(text))
		}
		first := until()
		if left := time.Until(first); left > lifetime || left < -patience {
			t.Errorf("the file expires in %v", left)
		}
		test.Retry(t, func() error {
			if !until().After(first.Add(lifetime)) {
				return fmt.Errorf("the file expires at %v", until())
			}
			return nil
		})
		test.Must(t, k.Close(t.Context()))
		last := until()
		test.Equal(t, "labels after Close", b.labels(t), "a/runc=ready a/crun=ready")
		time.Sleep(lifetime / 2)
		if !until().Equal(last) {
			t.Error("the expiry time was extended after Close")
		}
	})
}

// small mounts a tmpfs with options on a new directory.
func small(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	test.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() { test.Check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var s unix.Stat_t
	test.Must(t, unix.Stat(path, &s))
	return s.Ino
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	parent := small(t, "size=64k")
	b := newBed(t, parent)
	b.make(t)
	k := b.start(t, time.Hour)
	b.wait(t, "a/runc=ready a/crun=ready")
	fill := filepath.Join(parent, "fill")
	if err := os.WriteFile(fill, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	// Labels that are still true stay.
	b.is(content("a/runc=ready", "a/crun=ready", "a/kata=ready"))
	metrics(t, k, "0")
	test.ErrorIs(t, k.Fault(), unix.ENOSPC, "Fault")
	test.Equal(t, "the file has", b.labels(t), "a/runc=ready a/crun=ready")
	// Labels that are no longer true are removed from the old file in place.
	before := inode(t, b.path)
	b.is(content("a/runc=ready"))
	b.wait(t, "a/runc=ready")
	if inode(t, b.path) != before {
		t.Error("the file was replaced although the disk is full")
	}
	metrics(t, k, "0")
	// Content that is longer than the old file cannot be written.
	b.is(content("a/" + strings.Repeat("long", 50) + "=ready"))
	test.Retry(t, func() error {
		if got := b.labels(t); strings.Contains(got, "runc") {
			return fmt.Errorf("the file has %q", got)
		}
		return nil
	})
	b.is(content("a/runc=ready"))
	test.Must(t, os.Remove(fill))
	b.wait(t, "a/runc=ready")
	metrics(t, k, "1")
	if err := k.Fault(); err != nil {
		t.Errorf("Fault returns %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	parent := small(t, "size=1m")
	b := newBed(t, parent)
	b.make(t)
	test.Must(t, unix.Mount("", parent, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	k := b.start(t, time.Hour)
	metrics(t, k, "0")
	test.Must(t, unix.Mount("", parent, "", unix.MS_REMOUNT, ""))
	b.wait(t, "a/runc=ready a/crun=ready")
	metrics(t, k, "1")
}

// If the directory is a mount point, as in a container, the new file is created in it.
func TestDirectoryIsAMount(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	b := newBed(t, parent)
	b.make(t)
	test.Must(t, unix.Mount("tmpfs", b.dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { test.Check(t, unix.Unmount(b.dir, unix.MNT_DETACH)) })
	b.start(t, time.Hour)
	b.wait(t, "a/runc=ready a/crun=ready")
	b.is(content("a/runc=ready"))
	b.wait(t, "a/runc=ready")
	for _, dir := range []string{b.dir, parent} {
		test.Retry(t, func() error {
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				return fmt.Errorf("%s has %v, %v", dir, entries, err)
			}
			return nil
		})
	}
}
