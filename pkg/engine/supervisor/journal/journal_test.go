package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestCheckID(t *testing.T) {
	for _, id := range []string{"a", "0123abc", "a.b_c-d", strings.Repeat("x", 200)} {
		test.Checkf(t, CheckID(id), "check %.20q", id)
	}
	for _, id := range []string{"", ".", "..", "-a", "a/b", "a b", "a\n", "é", strings.Repeat("x", 201)} {
		test.Is(t, CheckID(id), errdefs.IsInvalidArgument, "check %.20q", id)
	}
}

func TestJournalIsReadByNameOnly(t *testing.T) {
	dir := t.TempDir()
	test.Is(t, test.Err(ReadTask(dir, "a")), errdefs.IsNotFound, "read a missing task")
	test.Is(t, test.Err(ReadExit(dir, "a")), errdefs.IsNotFound, "read a missing exit")
	test.Must(t, os.MkdirAll(TaskDir(dir, "a"), 0o700))
	file := filepath.Join(TaskDir(dir, "a"), TaskFile)
	test.Must(t, os.WriteFile(file, []byte(`{"format":1,"id":"a","state":"running","fromANewerVersion":{"x":1}}`), 0o600))
	if j, err := ReadTask(dir, "a"); err != nil || j.ID != "a" || j.State != TaskRunning {
		t.Errorf("the task of a newer version is %+v, %v", j, err)
	}
	test.Must(t, os.WriteFile(file, []byte(`{"id":`), 0o600))
	if _, err := ReadTask(dir, "a"); err == nil || errdefs.IsNotFound(err) {
		t.Errorf("read of a truncated journal: %v, want an error other than not found", err)
	}
}
