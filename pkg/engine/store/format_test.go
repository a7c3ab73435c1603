package store

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

type thing struct {
	Name string `json:"name"`
}

func aRecord(t *testing.T, dir, id string) {
	t.Helper()
	s, _, err := Open[thing, thing](dir)
	test.Must(t, err)
	test.Must(t, test.Err(s.Create(id, thing{"spec"}, thing{"status"}, Relaxed)))
}

func TestRecordsCarryTheirFormat(t *testing.T) {
	dir := t.TempDir()
	aRecord(t, dir, "a")
	for _, name := range []string{specFile, statusFile} {
		b := test.Value(os.ReadFile(filepath.Join(dir, "a", name)))(t)
		var got struct {
			Format int
			Name   string
		}
		if err := json.Unmarshal(b, &got); err != nil || got.Format != recordFormat || got.Name == "" {
			t.Errorf("%s is %s: %v", name, b, err)
		}
	}
}

// Open refuses records of a newer daemon: they could be misread, and their pods may run.
func TestNewerRecordsAreLeftAlone(t *testing.T) {
	for _, file := range []string{specFile, statusFile} {
		t.Run(file, func(t *testing.T) {
			dir := t.TempDir()
			aRecord(t, dir, "mine")
			aRecord(t, dir, "newer")
			path := filepath.Join(dir, "newer", file)
			// A newer record does not count as broken, even if it has another structure.
			test.Must(t, os.WriteFile(path, []byte(`{"format":3,"name":["other","shape"]}`), 0o600))
			unfinished := filepath.Join(dir, "unfinished")
			test.Must(t, os.Mkdir(unfinished, 0o700))
			_, _, err := Open[thing, thing](dir)
			if !errdefs.IsFailedPrecondition(err) {
				t.Fatalf("Open: %v", err)
			}
			test.Says(t, err, "format 3", "newer", dir, "up to 2", "reinstall the newer berth")
			test.Checkf(t, test.Err(os.Stat(unfinished)), "the refused Open removed a directory")
			if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "other") {
				t.Errorf("the newer record is now %s: %v", b, err)
			}
		})
	}
}

// A record without a format was not written by this program, and is not read.
func TestRecordsWithoutFormat(t *testing.T) {
	for _, name := range []string{specFile, statusFile} {
		dir := t.TempDir()
		aRecord(t, dir, "old")
		test.Must(t, os.WriteFile(filepath.Join(dir, "old", name), []byte(`{"name":"x"}`), 0o600))
		_, broken, err := Open[thing, thing](dir)
		if err != nil || len(broken) != 1 || !strings.Contains(broken[0].Err.Error(), "it has format 0") {
			t.Errorf("%s: %v, %v", name, broken, err)
		}
	}
}
