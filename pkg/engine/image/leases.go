package image

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

const (
	clientLabel = "berth.dev/client"
	expireLabel = "containerd.io/gc.expire"
	// clientRefs begin the names of what clients are writing: those of pulls are others, and
	// no client can keep a pull waiting.
	clientRefs = "client/"
	// clientLeaseGrace is how old one must be to give way when the disk is nearly full.
	// When it is full, below clientLeaseMargin percent, all do.
	clientLeaseGrace  = time.Hour
	clientLeaseMargin = 10
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

func isClientLease(l leases.Lease) bool {
	_, ok := l.Labels[clientLabel]
	return ok
}

// isOver says whether the collector takes what a lease holds.
func isOver(l leases.Lease, now time.Time) bool {
	end, err := time.Parse(time.RFC3339, l.Labels[expireLabel])
	return err == nil && now.After(end)
}

// dropClientWrites gives up what clients began to write.
func (f *files) dropClientWrites(ctx context.Context) {
	all, err := f.content.ListStatuses(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list what is being written")
		return
	}
	for _, st := range all {
		if !strings.HasPrefix(st.Ref, clientRefs) {
			continue
		}
		if err := f.content.Abort(ctx, st.Ref); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("ref", st.Ref).Warn("Failed to give up what a client began to write")
		}
	}
}

// dropClientLeases gives up what clients hold since before that time.
func (f *files) dropClientLeases(ctx context.Context, before time.Time) (dropped int) {
	all, err := f.leases.List(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list leases")
	}
	for _, l := range all {
		if isClientLease(l) && l.CreatedAt.Before(before) {
			f.endLease(ctx, l)
			dropped++
		}
	}
	if dropped > 0 {
		log.G(ctx).WithField("leases", dropped).Warn("Gave up leases of clients because the disk is nearly full")
	}
	return dropped
}
