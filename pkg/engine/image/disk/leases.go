package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// ClientLabel is on the leases of containerd API clients; ExpireLabel is containerd's for expiry.
const (
	ClientLabel = "berth.dev/client"
	ExpireLabel = "containerd.io/gc.expire"
	// ClientRefs begins the refs of clients' writes. Refs of pulls begin differently, so that a
	// client cannot block a pull.
	ClientRefs = "client/"
	// ClientLeaseGrace is the age from which a client's lease is deleted when the disk is nearly
	// full. If less than ClientLeaseMargin percent is free, all are deleted.
	ClientLeaseGrace  = time.Hour
	ClientLeaseMargin = 10
)

// Lease creates a lease: a collection keeps what is written with the returned context.
func (f *Files) Lease(ctx context.Context, labels map[string]string) (context.Context, leases.Lease, error) {
	l, err := f.Leases.Create(ctx, leases.WithRandomID(), leases.WithLabels(labels))
	if err != nil {
		return ctx, l, fmt.Errorf("lease: %w", err)
	}
	return leases.WithLease(ctx, l.ID), l, nil
}

// EndLease deletes l, even after ctx ended. A collection then frees what only l held.
func (f *Files) EndLease(ctx context.Context, l leases.Lease) {
	ctx = context.WithoutCancel(ctx)
	if err := f.Leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).Warn("Failed to delete image lease; the next start will retry")
	}
}

// DropDownloads removes partial downloads. The caller ensures that no pull is running. A collection
// would not find a download that began on a full disk: the metadata does not list it. Resumable
// downloads stay if goOn is set.
func (f *Files) DropDownloads(goOn bool) error {
	ingest := f.Path("content", "ingest")
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

// isDownload reports whether a directory has the files by which the content store identifies a
// download.
func isDownload(dir string) bool {
	for _, name := range []string{"ref", "startedat", "updatedat", "data"} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || name != "data" && info.Size() == 0 {
			return false
		}
	}
	return true
}

// IsClientLease reports whether a lease belongs to a client of the containerd API.
func IsClientLease(l leases.Lease) bool {
	_, ok := l.Labels[ClientLabel]
	return ok
}

// IsExpired reports whether a lease has expired, so that a collection removes it.
func IsExpired(l leases.Lease, now time.Time) bool {
	end, err := time.Parse(time.RFC3339, l.Labels[ExpireLabel])
	return err == nil && now.After(end)
}

// DropClientWrites aborts the unfinished writes of clients.
func (f *Files) DropClientWrites(ctx context.Context) {
	all, err := f.Content.ListStatuses(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list unfinished writes")
		return
	}
	for _, st := range all {
		if !strings.HasPrefix(st.Ref, ClientRefs) {
			continue
		}
		if err := f.Content.Abort(ctx, st.Ref); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("ref", st.Ref).Warn("Failed to abort a client's unfinished write")
		}
	}
}

// DropClientLeases deletes the leases that clients created before a given time.
func (f *Files) DropClientLeases(ctx context.Context, before time.Time) (dropped int) {
	all, err := f.Leases.List(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list leases")
		return 0
	}
	for _, l := range all {
		if IsClientLease(l) && l.CreatedAt.Before(before) {
			f.EndLease(ctx, l)
			dropped++
		}
	}
	if dropped > 0 {
		log.G(ctx).WithField("leases", dropped).Warn("Deleted leases of clients because the disk is nearly full")
	}
	return dropped
}
