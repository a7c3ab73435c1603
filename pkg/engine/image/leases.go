package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// lease keeps what is written under the returned context from being collected.
func (f *files) lease(ctx context.Context, labels map[string]string) (context.Context, leases.Lease, error) {
	l, err := f.leases.Create(ctx, leases.WithRandomID(), leases.WithLabels(labels))
	if err != nil {
		return ctx, l, fmt.Errorf("lease: %w", err)
	}
	return leases.WithLease(ctx, l.ID), l, nil
}

// endLease gives up what only the lease held. It works after ctx ended.
func (f *files) endLease(ctx context.Context, l leases.Lease) {
	ctx = context.WithoutCancel(ctx)
	if err := f.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).Warn("Failed to delete image lease; the next start will retry")
	}
}

// dropDownloads removes what pulls were writing: none of them is under way. A
// download that began on a full disk is not in the metadata, and no collection
// would find it. What can go on stays if some does.
func (f *files) dropDownloads(goOn bool) error {
	ingest := f.path("content", "ingest")
	entries, err := os.ReadDir(ingest)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list unfinished downloads: %w", err)
	}
	for _, e := range entries {
		if goOn && isDownload(filepath.Join(ingest, e.Name())) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(ingest, e.Name())); err != nil {
			return fmt.Errorf("remove an unfinished download: %w", err)
		}
	}
	return nil
}

// isDownload says whether a directory has what the content store needs to tell which
// download it is of.
func isDownload(dir string) bool {
	for _, name := range []string{"ref", "startedat", "updatedat", "data"} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || name != "data" && info.Size() == 0 {
			return false
		}
	}
	return true
}
