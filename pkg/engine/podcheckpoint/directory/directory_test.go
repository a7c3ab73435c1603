package directory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// made creates a complete checkpoint of 10 bytes, which is the given number of hours old.
func made(t *testing.T, dir, pod string, hours int) string {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Join(dir, manifest.ImagesDir), 0o700))
	test.Must(t, os.WriteFile(filepath.Join(dir, manifest.ImagesDir, "pages.img"), []byte("0123456789"), 0o600))
	m := &manifest.Manifest{
		Created: time.Now().Add(-time.Duration(hours) * time.Hour), Pod: []byte(`{"metadata":{"namespace":"n","name":"` + pod + `"}}`),
		Containers: []manifest.Container{{Name: "main", Config: []byte("{}")}},
	}
	test.Must(t, manifest.Seal(t.Context(), dir, m))
	return dir
}

// private returns a new directory that only root can enter.
func private(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	test.Must(t, os.Chmod(dir, 0o700))
	return dir
}

// write creates a file and its parent directories.
func write(t *testing.T, path string) {
	t.Helper()
	test.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)))
}

// names returns the names of the entries of dir.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries := test.Value(os.ReadDir(dir))(t)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// nonePending reports that no pod needs a checkpoint.
func nonePending() ([]string, error) { return nil, nil }

func TestRemove(t *testing.T) {
	parent := private(t)
	dir := func(name string) string { return filepath.Join(parent, name) }
	whole := made(t, dir("whole"), "p", 1)
	if err := Remove(whole+"/", nonePending); err != nil || names(t, parent) != "" {
		t.Errorf("%v; left is %s", err, names(t, parent))
	}
	test.ErrorIs(t, Remove(whole, nonePending), fs.ErrNotExist, "Remove of a missing checkpoint")
	used := made(t, dir("used"), "p", 1)
	release := test.Value(Use(used))(t)
	if err := Remove(used, nonePending); !errors.Is(err, ErrInUse) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove of a checkpoint in use: %v", err)
	}
	release()
	around := filepath.Join(t.TempDir(), "around")
	test.Must(t, os.Symlink(parent, around))
	for _, path := range []string{used, filepath.Join(around, "used")} {
		waiting := func() ([]string, error) { return []string{dir("none"), path}, nil }
		if err := Remove(used, waiting); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "start all containers") {
			t.Errorf("Remove of a checkpoint that a pod needs as %s: %v", path, err)
		}
	}
	test.ErrorIs(t, Remove(used, func() ([]string, error) { return nil, fs.ErrInvalid }), fs.ErrInvalid, "Remove if the pods cannot be read")
	write(t, dir("used/notes"))
	test.Refused(t, Remove(used, nonePending), errdefs.IsFailedPrecondition, `"notes"`)
	write(t, dir("half/images/pages.img"))
	test.Is(t, Remove(dir("half"), nonePending), errdefs.IsInvalidArgument, "Remove of a directory without a manifest")
	test.Must(t, os.Symlink(used, dir("link")))
	test.Fails(t, Remove(dir("link"), nonePending), "Remove followed a link")
	test.Equal(t, "left", names(t, used)+" "+names(t, dir("half")), "images manifest.json notes images")
}

// Use refuses a checkpoint that is being removed. A lock on a removed checkpoint does not count
// for a new checkpoint at the same path.
func TestUseOfWhatIsRemoved(t *testing.T) {
	dir := made(t, filepath.Join(private(t), "x"), "p", 1)
	lock := test.Value(locked(dir, unix.LOCK_EX|unix.LOCK_NB))(t)
	if _, err := Use(dir); !errors.Is(err, ErrInUse) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Use during the removal: %v", err)
	}
	test.Must(t, os.RemoveAll(dir))
	made(t, dir, "p", 1)
	if isAt(lock, dir, os.Stat) {
		t.Error("isAt takes the new checkpoint for the locked one")
	}
	release := test.Value(Use(dir))(t)
	defer release()
	test.Must(t, errors.Join(lock.Close()))
	test.ErrorIs(t, Remove(dir, nonePending), ErrInUse, "Remove of the new checkpoint, which is in use")
	none := test.Value(Use(dir + ".none"))(t)
	none()
}

func TestDiscard(t *testing.T) {
	parent := private(t)
	whole, half := made(t, filepath.Join(parent, "whole"), "p", 1), filepath.Join(parent, "half")
	write(t, filepath.Join(half, "images/pages.img"))
	release := test.Value(Use(half))(t)
	test.ErrorIs(t, Discard(half), ErrInUse, "Discard of a directory in use")
	release()
	for _, dir := range []string{whole, half, filepath.Join(parent, "none")} {
		test.Checkf(t, Discard(dir), "%s", dir)
	}
	test.Equal(t, "left", names(t, whole)+"; "+names(t, half), "images manifest.json; ")
}

func TestFinish(t *testing.T) {
	parent := private(t)
	dir := func(name string) string { return filepath.Join(parent, name) }
	made(t, dir(removing+"whole"), "p", 1)
	write(t, dir(removing+"half/images/pages.img"))
	test.Must(t, os.Mkdir(dir(removing+"empty"), 0o700))
	write(t, dir("mine/images/pages.img"))
	write(t, dir(removing+"file"))
	busy := test.Value(locked(made(t, dir(removing+"busy"), "p", 1), unix.LOCK_EX|unix.LOCK_NB))(t)
	for _, name := range []string{"full", "empty", "written"} {
		d := test.Value(Path(parent, "n", name, "", false, time.Now()))(t)
		test.Must(t, os.Mkdir(d, 0o700))
		switch name {
		case "full":
			write(t, filepath.Join(d, "images/pages.img"))
		case "written":
			release := test.Value(Use(d))(t)
			t.Cleanup(release)
		}
	}
	test.Check(t, Finish(parent))
	test.Equal(t, "left", regexp.MustCompile(`_\d{8}T\d{6}\.\d{3}Z`).ReplaceAllString(names(t, parent), ""), removing+"busy "+removing+"file mine n_full n_written names")
	test.Must(t, busy.Close())
	write(t, dir(removing+"busy/notes"))
	test.Fails(t, Finish(parent), "Finish removed a directory that has another file")
	others := private(t)
	made(t, filepath.Join(others, removing+"x"), "p", 1)
	test.Must(t, os.Chmod(others, 0o777|os.ModeSticky))
	if err := Finish(others); !errdefs.IsInvalidArgument(err) || names(t, others) != removing+"x" {
		t.Errorf("Finish where other users can write: %v", err)
	}
}

func TestDirectories(t *testing.T) {
	at := time.Date(2026, 11, 25, 15, 58, 25, 123e6, time.FixedZone("", 3600))
	for name, c := range map[string]struct{ namespace, name, want string }{
		"a pod":            {"default", "notebook-0.x", "default_notebook-0.x_20261125T145825.123Z"},
		"names of parents": {"..", "../../etc", "_..-..-etc_20261125T145825.123Z"},
		"hidden":           {".x", "y", "x_y_20261125T145825.123Z"},
		"empty names":      {"", "", "__20261125T145825.123Z"},
		"other characters": {"ä\n", "b c", "--_b-c_20261125T145825.123Z"},
		"a long name":      {strings.Repeat("n", 150), strings.Repeat("p", 250), strings.Repeat("n", 150) + "_" + strings.Repeat("p", 49) + "_20261125T145825.123Z"},
		"a long namespace": {strings.Repeat("n", 250), "p", strings.Repeat("n", 200) + "_20261125T145825.123Z"},
	} {
		if got := nameOf(c.namespace, c.name, at); got != c.want || !isOwnName(got) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, name := range []string{"", "x", "x_y", "20261125T145825.123Z", "_20261125T145825.123Z", "x_20261125T145825.123Z_"} {
		if isOwnName(name) {
			t.Errorf("%q counts as a name that berth has chosen", name)
		}
	}
	parent := filepath.Join(private(t), "a", "b")
	dir := test.Value(Path(parent, "n", "p", "", false, at))(t)
	test.Equal(t, "the path", dir, filepath.Join(parent, "n_p_20261125T145825.123Z"))
	for _, d := range []string{filepath.Dir(parent), parent, filepath.Join(parent, namesDir)} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s is %v, %v", d, info, err)
		}
	}
}

// named creates a checkpoint below parent, and names it.
func named(t *testing.T, parent, pod, as string, replace bool) string {
	t.Helper()
	dir := made(t, test.Value(Path(parent, "n", pod, as, replace, time.Now()))(t), pod, 1)
	test.Must(t, Name(dir, as, replace))
	return dir
}

// resolves checks what a name leads to; nothing if dir is empty.
func resolves(t *testing.T, parent, name, dir string) {
	t.Helper()
	if got, err := Resolve(parent, name); got != dir || (err == nil) != (dir != "") || err != nil && !errdefs.IsNotFound(err) {
		t.Errorf("%s is %q, %v; want %q", name, got, err, dir)
	}
}

func TestName(t *testing.T) {
	parent := private(t)
	resolves(t, parent, "web", "")
	first, other := named(t, parent, "a", "shop/web", false), named(t, parent, "c", "web", false)
	resolves(t, parent, "shop/web", first)
	resolves(t, parent, "web", other)
	resolves(t, parent, "shop", "")
	test.Equal(t, "the link", test.Value(os.Readlink(filepath.Join(parent, "names/shop:web")))(t), "../"+filepath.Base(first))
	test.Is(t, test.Err(Path(parent, "n", "b", "shop/web", false, time.Now())), errdefs.IsAlreadyExists, "Path for a name that is not free")
	second := made(t, test.Value(Path(parent, "n", "b", "", false, time.Now()))(t), "b", 1)
	test.Is(t, Name(second, "shop/web", false), errdefs.IsAlreadyExists, "a second checkpoint of the name")
	resolves(t, parent, "shop/web", first)
	second = named(t, parent, "b2", "shop/web", true)
	resolves(t, parent, "shop/web", second)
	test.Must(t, Remove(first, nonePending))
	resolves(t, parent, "shop/web", second)
	test.Must(t, Remove(second, nonePending))
	resolves(t, parent, "shop/web", "")
	test.Equal(t, "names", names(t, filepath.Join(parent, "names")), "web")
	test.ErrorIs(t, Name(second, "shop/web", false), fs.ErrNotExist, "Name of a removed checkpoint")
	lock := test.Value(locked(other, unix.LOCK_EX|unix.LOCK_NB))(t)
	result := make(chan error)
	go func() { result <- Name(other, "other", false) }() // waits for the lock
	test.Must(t, os.RemoveAll(other))
	test.Must(t, lock.Close())
	if err := <-result; !errors.Is(err, ErrInUse) && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Name of a checkpoint that is removed meanwhile: %v", err)
	}
}

func TestValidNames(t *testing.T) {
	parent := private(t)
	long := strings.Repeat("a/", 99) + "bc"
	for name, valid := range map[string]bool{
		"a": true, "web": true, "shop/web-2.1_x": true, "0/9": true, long: true, "a/b.c": true,
		long + "d": false, "": false, "/a": false, "a/": false, "a//b": false, ".": false, "..": false, "../a": false, "a/..": false, "a/../b": false,
		"A": false, "a b": false, "a:b": false, "a\nb": false, "ä": false, "a\x00": false, "-a": false, "a-": false, "a/_b": false, "a%2fb": false, "a\\b": false,
		"registry.example/web": false, "web.1": false, "localhost:5000/web": false, "web:1": false, "web@sha256": false,
	} {
		_, err := Resolve(parent, name)
		if valid != errdefs.IsNotFound(err) || !valid && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", name, err)
		}
		if !valid {
			test.Is(t, test.Err(Path(parent, "n", "p", name, true, time.Now())), errdefs.IsInvalidArgument, "Path for an invalid name")
		}
	}
	resolves(t, parent, long, "")
	resolves(t, parent, long, named(t, parent, "p", long, false))
}

// TestHostileNames: links lead only to checkpoints beside them. Finish removes the links that Name
// or Remove has left, and no others.
func TestHostileNames(t *testing.T) {
	parent, elsewhere := private(t), private(t)
	dir := named(t, parent, "p", "good", false)
	outside := made(t, test.Value(Path(elsewhere, "n", "q", "", false, time.Now()))(t), "q", 1)
	of := func(name string) string { return filepath.Join(parent, "names", name) }
	gone := "../n_gone_20261125T145825.123Z"
	linked := filepath.Join(parent, "n_linked_20261125T145825.123Z")
	test.Must(t, os.Symlink(outside, linked))
	for link, to := range map[string]string{
		"outside": outside, "relative": "../../" + filepath.Base(elsewhere) + "/" + filepath.Base(outside), "etc": "/etc", "parent": "..", "self": ".", "loop": "loop",
		"gone": gone, ".good.new": "../" + filepath.Base(dir), "linked": "../" + filepath.Base(linked),
	} {
		test.Must(t, os.Symlink(to, of(link)))
	}
	write(t, of("file"))
	test.Must(t, os.Mkdir(of("directory"), 0o700))
	for _, name := range []string{"outside", "relative", "etc", "parent", "self", "loop", "gone", "linked", "file", "directory"} {
		resolves(t, parent, name, "")
	}
	all, _, err := Names(parent)
	if err != nil || len(all) != 1 || all[dir] != "good" {
		t.Errorf("Names returns %v, %v", all, err)
	}
	for range 2 {
		test.Check(t, Finish(parent))
		test.Equal(t, "left", names(t, filepath.Join(parent, "names")), "directory etc file good loop parent self")
	}
	resolves(t, parent, "good", dir)
	test.Equal(t, "the other checkpoint", names(t, outside), "images manifest.json")
	// A name may take the place of a link, which is not followed, but not that of a directory.
	test.Must(t, os.Symlink("../"+filepath.Base(dir), of(".etc.new")))
	resolves(t, parent, "etc", named(t, parent, "r", "etc", false))
	test.Fails(t, Name(dir, "directory", true), "Name replaced a directory")
	test.Must(t, os.Chmod(filepath.Join(parent, "names"), 0o777))
	for _, err := range []error{test.Err(Resolve(parent, "good")), Finish(parent), Name(dir, "mine", false)} {
		test.Is(t, err, errdefs.IsInvalidArgument, "names where other users can write")
	}
	test.Must(t, os.RemoveAll(filepath.Join(parent, "names")))
	test.Must(t, os.Symlink(filepath.Join(elsewhere, "names"), filepath.Join(parent, "names")))
	test.Fails(t, test.Err(Resolve(parent, "good")), "Resolve followed a link to names")
}

// TestRemoveBesideOthersNames removes a checkpoint beside a directory "names" that another user
// made and locked.
func TestRemoveBesideOthersNames(t *testing.T) {
	parent := private(t)
	dir := made(t, filepath.Join(parent, "web"), "p", 1)
	others := filepath.Join(parent, "names")
	test.Must(t, os.MkdirAll(others, 0o700))
	lock := test.Value(locked(others, unix.LOCK_EX|unix.LOCK_NB))(t)
	defer lock.Close()
	test.Must(t, os.Chmod(others, 0o777))
	test.Must(t, Remove(dir, nonePending))
	test.Equal(t, "left", names(t, parent), "names")
}
