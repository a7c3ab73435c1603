package pod

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

const stranger = 12345

// TestChangeablePinnedFiles has a file that is given to another user after it was read
// the first time.
func TestChangeablePinnedFiles(t *testing.T) {
	file := put(t, filepath.Join(t.TempDir(), "base.json"), "{}")
	test.Must(t, test.Err(ReadText(file)))
	test.Must(t, os.Chown(file, stranger, stranger))
	test.Refused(t, test.Err(ReadText(file)), errdefs.IsFailedPrecondition, "chown root")
	test.ErrorIs(t, test.Err(ReadText(filepath.Join(t.TempDir(), "none"))), os.ErrNotExist, "a missing file")
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	test.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
