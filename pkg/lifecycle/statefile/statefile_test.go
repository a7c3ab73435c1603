package statefile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "state.json")
	type state struct{ A int }
	got := state{1}
	if err := Read(path, 1, &got); err != nil || got.A != 1 {
		t.Errorf("a file that does not exist: %v, %v", got, err)
	}
	test.Must(t, Write(path, 1, state{2}))
	if err := Read(path, 1, &got); err != nil || got.A != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", i, err)
	}
	test.Fails(t, Write(path, 1, func() {}), "a function was written")
	test.Fails(t, Read(path, 2, &got), "another format was read")
	test.Fails(t, Read(filepath.Dir(path), 1, &got), "a directory was read")
}
