package store

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/record"
)

// Format is the number of the form in which records are written, as "format" in
// each of their files. Fields that an older daemon may overlook without harm do not
// change it. What it would misread does: then it goes up by one, and daemons that do
// not know it refuse to start. A record of a lower format, or of none, is broken.
const Format = 1

// refuseNewer looks for records that a newer daemon wrote, before anything is
// taken for broken or left over: their pods may be running.
func refuseNewer(dir string, entries []fs.DirEntry) error {
	newest, count, example := Format, 0, ""
	for _, e := range entries {
		if format := formatOf(filepath.Join(dir, e.Name())); format > Format {
			newest, count, example = max(newest, format), count+1, e.Name()
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%d of the records in %s are of format %d, written by a newer berth (%s is one); this berth knows formats up to %d. "+
		"Nothing was changed and pods keep running: reinstall the newer berth, or drain the node with it before the downgrade: %w",
		count, dir, newest, example, Format, errdefs.ErrFailedPrecondition)
}

// formatOf is the highest format among the files of a record. One that cannot be
// read has none.
func formatOf(object string) int {
	highest := 0
	for _, name := range []string{specFile, statusFile} {
		b, err := os.ReadFile(filepath.Join(object, name))
		if format, bad := record.FormatOf(b); err == nil && bad == nil {
			highest = max(highest, format)
		}
	}
	return highest
}
