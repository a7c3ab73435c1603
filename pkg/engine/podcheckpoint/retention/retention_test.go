package retention

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// made makes a whole checkpoint of 10 bytes, that many hours old.
func made(t *testing.T, dir, pod string, hours int) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, manifest.ImagesDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifest.ImagesDir, "pages.img"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &manifest.Manifest{
		Created: time.Now().Add(-time.Duration(hours) * time.Hour), Pod: []byte(`{"metadata":{"namespace":"n","name":"` + pod + `"}}`),
		Containers: []manifest.Container{{Name: "main", Config: []byte("{}")}},
	}
	if err := manifest.Seal(t.Context(), dir, m); err != nil {
		t.Fatal(err)
	}
	return dir
}

// private is a new directory that only root can enter.
func private(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write makes a file and the directories that it is in.
func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// names are what is directly in dir.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// nobody is where no pod waits.
func nobody() ([]string, error) { return nil, nil }

func TestRemove(t *testing.T) {
	parent := private(t)
	dir := func(name string) string { return filepath.Join(parent, name) }
	whole := made(t, dir("whole"), "p", 1)
	if err := Remove(whole+"/", nobody); err != nil || names(t, parent) != "" {
		t.Errorf("%v; left is %s", err, names(t, parent))
	}
	if err := Remove(whole, nobody); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of none: %v", err)
	}
	used := made(t, dir("used"), "p", 1)
	release, err := Use(t.Context(), used)
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove(used, nobody); !errors.Is(err, ErrInUse) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one in use: %v", err)
	}
	release()
	around := filepath.Join(t.TempDir(), "around")
	if err := os.Symlink(parent, around); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{used, filepath.Join(around, "used")} {
		waiting := func() ([]string, error) { return []string{dir("none"), path}, nil }
		if err := Remove(used, waiting); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "start them") {
			t.Errorf("one that a pod needs as %s: %v", path, err)
		}
	}
	if err := Remove(used, func() ([]string, error) { return nil, fs.ErrInvalid }); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("one of which nobody can tell: %v", err)
	}
	write(t, dir("used/notes"))
	if err := Remove(used, nobody); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `"notes"`) {
		t.Errorf("one with something else: %v", err)
	}
	write(t, dir("half/images/pages.img"))
	if err := Remove(dir("half"), nobody); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one without a manifest: %v", err)
	}
	if err := os.Symlink(used, dir("link")); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir("link"), nobody); err == nil {
		t.Error("a link is followed")
	}
	if got := names(t, used) + " " + names(t, dir("half")); got != "images manifest.json notes images" {
		t.Errorf("left is %s", got)
	}
}

// Who begins to use a checkpoint that is being removed waits, and does not find it then.
func TestUseWaitsForARemoval(t *testing.T) {
	dir := made(t, filepath.Join(private(t), "x"), "p", 1)
	lock, err := alone(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Use(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("for somebody who left: %v", err)
	}
	got := make(chan error)
	go func() {
		release, err := Use(t.Context(), dir)
		if err == nil {
			release()
		}
		got <- err
	}()
	if err := errors.Join(os.RemoveAll(dir), lock.Close(), <-got); err != nil {
		t.Error(err)
	}
}

// Who waited for a removal has what has taken its place since.
func TestUseOfASuccessor(t *testing.T) {
	parent := private(t)
	dir, other := made(t, filepath.Join(parent, "x"), "p", 1), made(t, filepath.Join(parent, "y"), "p", 1)
	lock, err := alone(dir)
	if err != nil {
		t.Fatal(err)
	}
	used := make(chan func())
	go func() {
		release, err := Use(t.Context(), dir)
		if err != nil {
			t.Error(err)
		}
		used <- release
	}()
	time.Sleep(2 * lockInterval) // it may have tried once; if not, all is as well
	if err := unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	release := <-used
	if err := Remove(dir, nobody); !errors.Is(err, ErrInUse) {
		t.Errorf("of the new one: %v", err)
	}
	release()
	if err := Remove(dir, nobody); err != nil {
		t.Error(err)
	}
}

func TestFinish(t *testing.T) {
	parent := private(t)
	dir := func(name string) string { return filepath.Join(parent, name) }
	made(t, dir(going+"whole"), "p", 1)
	write(t, dir(going+"half/images/pages.img"))
	if err := os.Mkdir(dir(going+"empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir("mine/images/pages.img"))
	write(t, dir(going+"file"))
	busy, err := alone(made(t, dir(going+"busy"), "p", 1))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Finish(parent); n != 3 || err != nil {
		t.Errorf("%d finished, %v", n, err)
	}
	if got, want := names(t, parent), going+"busy "+going+"file mine"; got != want {
		t.Errorf("left are %s, want %s", got, want)
	}
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, dir(going+"busy/notes"))
	if n, err := Finish(parent); n != 0 || err == nil {
		t.Errorf("with something else in it: %d, %v", n, err)
	}
	if n, err := Finish(dir("none")); n != 0 || err != nil {
		t.Errorf("of no directory: %d, %v", n, err)
	}
	others := private(t)
	made(t, filepath.Join(others, going+"x"), "p", 1)
	if err := os.Chmod(others, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if n, err := Finish(others); n != 0 || !errdefs.IsInvalidArgument(err) || names(t, others) != going+"x" {
		t.Errorf("where others can write: %d, %v", n, err)
	}
}

func TestScan(t *testing.T) {
	parent := private(t)
	dir := func(name string) string { return filepath.Join(parent, name) }
	made(t, dir("old"), "p", 2)
	made(t, dir("new"), "p", 1)
	made(t, dir(going+"gone"), "p", 1)
	write(t, dir("file"))
	write(t, dir("half/images/pages.img"))
	write(t, dir("written/images/pages.img"))
	release, err := Use(t.Context(), dir("written"))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	write(t, dir("text/manifest.json"))
	if err := os.Remove(filepath.Join(made(t, dir("lost"), "p", 1), "images", "pages.img")); err != nil {
		t.Fatal(err)
	}
	found := func(s *scanner) string {
		t.Helper()
		f, err := s.scan(parent)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range f.Checkpoints {
			got = append(got, filepath.Base(c.Directory))
		}
		got = append(got, "-")
		for _, d := range f.Damaged {
			got = append(got, filepath.Base(d.Directory))
		}
		return strings.Join(got, " ")
	}
	s := &scanner{}
	for range 2 { // what is remembered makes no difference
		if got := found(s); got != "new old - half lost text" {
			t.Errorf("found are %s", got)
		}
	}
	write(t, dir("old/images/pages.img")) // it has another size now
	if got := found(s); got != "new - half lost old text" {
		t.Errorf("after a change there are %s", got)
	}
	made(t, dir("half"), "p", 3)
	if got := found(s); got != "new half - lost old text" {
		t.Errorf("after another there are %s", got)
	}
	f, err := s.scan(parent)
	if want := (Checkpoint{Directory: dir("new"), Namespace: "n", Name: "p", Created: f.Checkpoints[0].Created, Size: 10}); err != nil || f.Checkpoints[0] != want {
		t.Errorf("it is %+v, %v", f.Checkpoints[0], err)
	}
	if f, err := s.scan(dir("none")); err != nil || len(f.Checkpoints)+len(f.Damaged) > 0 {
		t.Errorf("where there is nothing: %v, %v", f, err)
	}
	if err := os.Chmod(parent, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := s.scan(parent); !errdefs.IsInvalidArgument(err) {
		t.Errorf("where others can write: %v", err)
	}
}

func TestKeeper(t *testing.T) {
	parent := private(t)
	dir := func(name string) string { return filepath.Join(parent, name) }
	for i, name := range []string{"0", "1", "2", "3"} {
		made(t, dir(name), "p", i+1)
	}
	write(t, dir("half/images/pages.img"))
	made(t, dir(going+"9"), "p", 9)
	if err := os.Mkdir(dir(directoryName("n", "p", time.Now())), 0o700); err != nil {
		t.Fatal(err)
	}
	needed := dir("3")
	k := New(Settings{Directory: parent, Bounds: Bounds{Keep: 2}}, func() []string { return []string{needed} })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { k.Run(ctx); close(ended) }()
	defer func() { stop(); <-ended }()
	is := func(want string) State {
		t.Helper()
		for end := time.Now().Add(time.Minute); names(t, parent) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("there are %s, want %s", names(t, parent), want)
			}
		}
		return k.State(t.Context())
	}
	s := is("0 1 3 half")
	if s.Count != 3 || s.Bytes != 30 || len(s.Damaged) != 1 || !s.Exceeded || s.Directory != parent || time.Since(s.Oldest) < 4*time.Hour {
		t.Errorf("with one that is needed: %+v", s)
	}
	release, err := Use(t.Context(), dir("1"))
	if err != nil {
		t.Fatal(err)
	}
	made(t, dir("new"), "p", 0)
	k.Written(filepath.Join(parent, "elsewhere", "new"))
	k.Configure(Settings{Directory: parent, Bounds: Bounds{Keep: 2, MaxTotalSize: 10}})
	is("1 3 half new")
	release()
	k.Written(dir("new"))
	s = is("3 half new")
	if s.Count != 2 || !s.Exceeded || s.Fault != nil {
		t.Errorf("one is left that is needed: %+v", s)
	}
	write(t, dir("new/notes"))
	made(t, dir("newer"), "p", -1)
	k.Written(dir("newer"))
	for k.State(t.Context()).Fault == nil && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if s := k.State(t.Context()); !strings.Contains(s.Fault.Error(), "notes") || s.Count != 3 {
		t.Errorf("one that cannot be removed: %+v", s)
	}
	elsewhere := private(t)
	k.Configure(Settings{Directory: elsewhere})
	for k.State(t.Context()).Fault != nil && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if s := k.State(t.Context()); s.Count != 0 || s.Directory != elsewhere || s.Exceeded || !s.Oldest.IsZero() {
		t.Errorf("elsewhere: %+v", s)
	}
}

func TestDirectories(t *testing.T) {
	at := time.Date(2026, 11, 25, 15, 58, 25, 123e6, time.FixedZone("", 3600))
	for name, c := range map[string]struct{ namespace, name, want string }{
		"a pod":        {"default", "notebook-0.x", "default_notebook-0.x_20261125T145825.123Z"},
		"a way out":    {"..", "../../etc", "_..-..-etc_20261125T145825.123Z"},
		"hidden":       {".x", "y", "x_y_20261125T145825.123Z"},
		"nobody":       {"", "", "__20261125T145825.123Z"},
		"other signs":  {"ä\n", "b c", "--_b-c_20261125T145825.123Z"},
		"a long name":  {strings.Repeat("n", 150), strings.Repeat("p", 250), strings.Repeat("n", 150) + "_" + strings.Repeat("p", 49) + "_20261125T145825.123Z"},
		"a long space": {strings.Repeat("n", 250), "p", strings.Repeat("n", 200) + "_20261125T145825.123Z"},
	} {
		if got := directoryName(c.namespace, c.name, at); got != c.want || !ours(got) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, name := range []string{"", "x", "x_y", "20261125T145825.123Z", "_20261125T145825.123Z", "x_20261125T145825.123Z_"} {
		if ours(name) {
			t.Errorf("%q is no name of berth's", name)
		}
	}
	parent := filepath.Join(private(t), "a", "b")
	dir, err := NewDirectory(parent, "n", "p", at)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, parent} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s is %v, %v", d, info, err)
		}
	}
	if _, err := NewDirectory(parent, "n", "p", at); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second one of that name: %v", err)
	}
	release, err := Use(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	full, err := NewDirectory(parent, "n", "full", at)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(full, "images"))
	if err := allForsaken(parent); err != nil || names(t, parent) != filepath.Base(full)+" "+filepath.Base(dir) {
		t.Errorf("%v; of one that is used and one that is full are left %s", err, names(t, parent))
	}
	release()
	if err := allForsaken(parent); err != nil || names(t, parent) != filepath.Base(full) {
		t.Errorf("%v; left are %s", err, names(t, parent))
	}
}

func TestOutcome(t *testing.T) {
	for err, want := range map[error]string{nil: ok, errdefs.ErrInvalidArgument: refused, errdefs.ErrFailedPrecondition: refused, errdefs.ErrNotImplemented: refused, errdefs.ErrResourceExhausted: failed, errdefs.ErrUnavailable: failed, fs.ErrInvalid: failed} {
		if got := outcome(err); got != want {
			t.Errorf("%v is %s", err, got)
		}
	}
}
