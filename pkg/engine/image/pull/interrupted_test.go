package pull

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

func TestInterruptedPullsAreGivenUp(t *testing.T) {
	root := t.TempDir()
	f := test.Value(disk.Open(t.Context(), disk.Config{Root: root, WritableRoot: root, Snapshotter: disk.Overlayfs}))(t)
	defer func() { test.Check(t, f.Close()) }()
	ctx, collector := disk.InNamespace(t.Context()), disk.NewWorker()
	go collector.Run(ctx, func(context.Context) {})
	p := &Puller{Files: f, Work: containerfs.Work{Collector: collector}, Interrupted: &interrupted{files: f, collector: collector}}
	// keep keeps the lease of an interrupted pull; want checks how many leases are left.
	keep := func(key string) {
		t.Helper()
		leased, lease, err := f.Lease(ctx, nil)
		test.Must(t, err)
		p.Interrupted.Keep(leased, key, lease)
	}
	want := func(n int) {
		t.Helper()
		if left := test.Value(f.Leases.List(ctx))(t); len(left) != n {
			t.Errorf("%d leases are left, want %d", len(left), n)
		}
	}
	keep("one")
	p.Interrupted.dropOld(ctx, time.Now().Add(keptFor-time.Minute))
	want(1)
	p.Interrupted.dropOld(ctx, time.Now().Add(keptFor))
	want(0)
	for n := range keptPulls + 1 {
		keep(fmt.Sprint(n))
	}
	want(keptPulls)
	_, lease, err := f.Lease(ctx, nil)
	test.Must(t, err)
	p.abandon(ctx, lease, fmt.Errorf("write: %w", unix.ENOSPC))
	want(0)
}
