package statefile

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "state.json")
	got := map[string]int{"before": 1}
	if err := Read(path, &got); err != nil || got["before"] != 1 {
		t.Errorf("a file that does not exist: %v, %v", got, err)
	}
	want := map[string]int{"a": 1, "b": 2}
	test.Must(t, Write(path, want))
	got = nil
	if err := Read(path, &got); err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", i, err)
	}
	test.Fails(t, Write(path, func() {}), "a function was written")
	test.Must(t, os.WriteFile(path, []byte("{"), 0o600))
	test.Fails(t, Read(path, &got), "half a file was read")
	test.Fails(t, Read(filepath.Dir(path), &got), "a directory was read")
}
