package keep

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe"
)

// bed is a store and the path of an installed program.
type bed struct {
	*Store
	path string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{New(filepath.Join(t.TempDir(), "tools")), filepath.Join(t.TempDir(), "crun")}
	test.Must(t, os.Mkdir(b.dir, 0o755))
	b.install(t, "one")
	return b
}

// install replaces the program with a new file.
func (b *bed) install(t *testing.T, content string) {
	t.Helper()
	next := b.path + ".next"
	if err := os.WriteFile(next, []byte(content), 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	test.Must(t, os.Rename(next, b.path))
}

// overwrite changes a file in place.
func overwrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
}

func (b *bed) identity(t *testing.T) probe.Identity {
	t.Helper()
	return test.Value(probe.Identify(b.path))(t)
}

func (b *bed) copy(t *testing.T) Binary {
	t.Helper()
	return test.Value(b.Copy(b.identity(t)))(t)
}

func (b *bed) holds(t *testing.T, one Binary, want string) {
	t.Helper()
	test.Equal(t, b.Abs(one), test.File(t, b.Abs(one)), want)
}

func TestCopy(t *testing.T) {
	b := newBed(t)
	one := b.copy(t)
	b.holds(t, one, "one")
	if filepath.Base(one.Kept) != "crun" || one.Dir() != Prefix+one.SHA256[:16] || !b.Untouched(one) {
		t.Errorf("the copy is %+v", one)
	}
	if again := b.copy(t); !reflect.DeepEqual(again, one) {
		t.Errorf("the second copy is %+v, the first was %+v", again, one)
	}
	overwrite(t, b.path, "two")
	two := b.copy(t)
	b.holds(t, one, "one")
	b.holds(t, two, "two")
	// A program may behave differently under another name, so the copy keeps that name.
	krun := filepath.Join(filepath.Dir(b.path), "krun")
	test.Must(t, os.Symlink("crun", krun))
	id := test.Value(probe.Identify(krun))(t)
	other := test.Value(b.Copy(id))(t)
	if other.Dir() != two.Dir() || filepath.Base(other.Kept) != "krun" {
		t.Errorf("krun is kept as %s, crun as %s", other.Kept, two.Kept)
	}
	b.holds(t, other, "two")
	halves, err := filepath.Glob(filepath.Join(b.dir, PartialPrefix+"*"))
	if err != nil || len(halves) > 0 {
		t.Errorf("left over: %q (%v)", halves, err)
	}
}

func TestCopyOfWhatChanged(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *bed){
		"replaced":    func(t *testing.T, b *bed) { t.Helper(); b.install(t, "two") },
		"overwritten": func(t *testing.T, b *bed) { t.Helper(); overwrite(t, b.path, "longer") },
		"gone":        func(t *testing.T, b *bed) { t.Helper(); os.Remove(b.path) },
		"mode changed": func(t *testing.T, b *bed) {
			t.Helper()
			test.Must(t, os.Chmod(b.path, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			id := b.identity(t)
			change(t, b)
			if _, err := b.Copy(id); !errors.Is(err, ErrChanged) {
				t.Errorf("got %v, want ErrChanged", err)
			}
		})
	}
}

func TestRecall(t *testing.T) {
	b := newBed(t)
	one := b.copy(t)
	later := New(b.dir) // the store of a restarted daemon
	if got, err := later.Recall(one.Identity); err == nil {
		t.Errorf("Recall returned %+v, which was not recorded", got)
	}
	later.Record(one)
	if got, err := later.Recall(one.Identity); err != nil || !reflect.DeepEqual(got, one) {
		t.Errorf("Recall returned %+v, want %+v", got, one)
	}
	overwrite(t, b.Abs(one), "bad")
	if _, err := later.Recall(one.Identity); err == nil {
		t.Error("Recall returned a changed copy")
	}
	if again, err := later.Copy(one.Identity); err != nil || again.Kept != one.Kept {
		t.Errorf("the new copy is %+v, %v", again, err)
	}
	b.holds(t, one, "one")
}

func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, b *bed, copied string)
		// restored is whether Verify can restore the copy.
		restored bool
	}{
		"unchanged": {func(*testing.T, *bed, string) {}, true},
		"touched":   {func(t *testing.T, _ *bed, copied string) { t.Helper(); touch(t, copied) }, true},
		"damaged":   {func(t *testing.T, _ *bed, copied string) { t.Helper(); overwrite(t, copied, "bad") }, true},
		"gone":      {func(_ *testing.T, _ *bed, copied string) { os.RemoveAll(filepath.Dir(copied)) }, true},
		"damaged, and another program installed": {func(t *testing.T, b *bed, copied string) {
			t.Helper()
			overwrite(t, copied, "bad")
			b.install(t, "two")
		}, false},
		"gone, and uninstalled": {func(_ *testing.T, b *bed, copied string) { os.Remove(copied); os.Remove(b.path) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			one := b.copy(t)
			c.damage(t, b, b.Abs(one))
			err := b.Verify(one)
			if c.restored {
				if err != nil || !b.Untouched(one) {
					t.Errorf("%v, untouched %t", err, b.Untouched(one))
				}
				b.holds(t, one, "one")
				return
			}
			if !errdefs.IsFailedPrecondition(err) || errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), b.path) {
				t.Errorf("the error is %v", err)
			}
			if _, err := os.Lstat(b.Abs(one)); !os.IsNotExist(err) {
				t.Errorf("the damaged copy is still there (%v)", err)
			}
			// Verify restores the copy once the same program is installed again.
			b.install(t, "one")
			test.Check(t, b.Verify(one))
			b.holds(t, one, "one")
		})
	}
}

// A program with companions is kept, checked and restored as a whole.
func TestCompanions(t *testing.T) {
	b := newBed(t)
	part := filepath.Join(filepath.Dir(b.path), "parts", "deep", "sentry")
	test.Must(t, os.MkdirAll(filepath.Dir(part), 0o755))
	overwrite(t, part, "sentry one")
	whole := func() probe.Identity {
		t.Helper()
		return test.Value(probe.Identify(b.path, "parts"))(t)
	}
	one := test.Value(b.Copy(whole()))(t)
	kept := filepath.Join(filepath.Dir(b.Abs(one)), "parts", "deep", "sentry")
	holds := func(want string) {
		t.Helper()
		test.Equal(t, kept, test.File(t, kept), want)
	}
	b.holds(t, one, "one")
	holds("sentry one")
	if alone := b.copy(t); alone.SHA256 == one.SHA256 || alone.Dir() == one.Dir() {
		t.Errorf("the copies with and without companions are both in %s", alone.Dir())
	}
	for name, damage := range map[string]func(){
		"damaged": func() { overwrite(t, kept, "bad") },
		"gone":    func() { os.RemoveAll(filepath.Dir(filepath.Dir(kept))) },
	} {
		damage()
		if b.Untouched(one) {
			t.Errorf("%s: the copy counts as untouched", name)
		}
		if err := b.Verify(one); err != nil || !b.Untouched(one) {
			t.Errorf("%s: %v", name, err)
		}
		holds("sentry one")
	}
	before := whole()
	overwrite(t, part, "sentry two of an upgrade")
	if _, err := New(b.dir).Copy(before); !errors.Is(err, ErrChanged) {
		t.Errorf("with a replaced companion: %v, want ErrChanged", err)
	}
	two, err := b.Copy(whole())
	if err != nil || two.Dir() == one.Dir() {
		t.Errorf("the new copy is %+v, %v", two, err)
	}
	holds("sentry one")
}

func touch(t *testing.T, path string) {
	t.Helper()
	test.Must(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
}

// TestLabels needs root, because only root may set these attributes.
func TestLabels(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it sets security attributes")
	}
	b := newBed(t)
	// CAP_NET_RAW, permitted and effective, as setcap(8) writes it.
	caps := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	test.Must(t, unix.Setxattr(b.path, "security.capability", caps, 0))
	one := b.copy(t)
	got := make([]byte, 64)
	n, err := unix.Getxattr(b.Abs(one), "security.capability", got)
	if err != nil || !bytes.Equal(got[:n], caps) {
		t.Errorf("the copy has %x (%v), want %x", got[:max(n, 0)], err, caps)
	}
}

func TestNoExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	for name, flags := range map[string]uintptr{"exec": 0, "noexec": unix.MS_NOEXEC} {
		dir := t.TempDir()
		test.Must(t, unix.Mount("tmpfs", dir, "tmpfs", flags, ""))
		t.Cleanup(func() { test.Check(t, unix.Unmount(dir, 0)) })
		test.Equal(t, name, test.Value(NoExec(dir))(t), flags != 0)
	}
	test.Fails(t, test.Err(NoExec("/nowhere")), "NoExec of a missing directory succeeded")
}

// A copy that cannot be read at the moment, for example because too many files are
// open, may be undamaged, so it is not removed.
func TestVerifyOfWhatCannotBeRead(t *testing.T) {
	b := newBed(t)
	one := b.copy(t)
	copied := b.Abs(one)
	test.Must(t, os.Rename(copied, copied+".away"))
	if err := os.Mkdir(copied, 0o700); err != nil { // reading it fails
		t.Fatal(err)
	}
	b.install(t, "two")
	test.Is(t, b.Verify(one), errdefs.IsUnavailable, "Verify of an unreadable copy")
	test.Mustf(t, os.Remove(copied), "the unreadable copy was removed")
	test.Must(t, os.Rename(copied+".away", copied))
	test.Check(t, b.Verify(one))
}
