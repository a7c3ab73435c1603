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
func (f *files) lease(ctx context.Context) (context.Context, leases.Lease, error) {
	l, err := f.leases.Create(ctx, leases.WithRandomID())
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

// dropLeases ends the leases of pulls that did not end them themselves, and
// collects what they held. Nobody can take half a pull for a whole one after it.
func (f *files) dropLeases(ctx context.Context) error {
	left, err := f.leases.List(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	for _, l := range left {
		if err := f.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	log.G(ctx).WithField("pulls", len(left)).Info("Cleaning up after interrupted pulls")
	if _, err := f.db.GarbageCollect(ctx); err != nil {
		return fmt.Errorf("remove interrupted pulls: %w", err)
	}
	return nil
}

// dropDownloads removes what pulls were writing: none of them is under way. A
// download that began on a full disk is not in the metadata, and no collection
// would find it.
func (f *files) dropDownloads() error {
	ingest := f.path("content", "ingest")
	entries, err := os.ReadDir(ingest)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list unfinished downloads: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(ingest, e.Name())); err != nil {
			return fmt.Errorf("remove an unfinished download: %w", err)
		}
	}
	return nil
}
