package image

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// program serves a snapshotter on a socket, as another program would.
type program struct {
	socket, root string
	snapshotter  snapshots.Snapshotter
	server       *grpc.Server
	// stuck makes calls of Mounts wait for freed.
	stuck atomic.Bool
	freed chan struct{}
}

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{socket: filepath.Join(t.TempDir(), "snapshotter.sock"), root: t.TempDir(), freed: make(chan struct{})}
	var err error
	p.snapshotter, err = native.NewSnapshotter(p.root)
	test.Must(t, err)
	p.start(t)
	t.Cleanup(func() {
		close(p.freed)
		p.server.Stop()
		test.Must(t, p.snapshotter.Close())
	})
	return p
}

func (p *program) start(t *testing.T) {
	t.Helper()
	l := test.Value(net.Listen("unix", p.socket))(t)
	p.server = grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(p.server, snapshotservice.FromSnapshotter(stuckMounts{p.snapshotter, p}))
	go func() { _ = p.server.Serve(l) }()
}

// left returns the directories of the program's snapshots.
func (p *program) left(t *testing.T) []string {
	t.Helper()
	return test.Value(filepath.Glob(filepath.Join(p.root, "snapshots", "*")))(t)
}

type stuckMounts struct {
	snapshots.Snapshotter
	p *program
}

func (s stuckMounts) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	if s.p.stuck.Load() {
		select {
		case <-s.p.freed:
		case <-ctx.Done():
		}
	}
	return s.Snapshotter.Mounts(ctx, key)
}

// pulledIntoProgram pulls an image into the program's snapshotter.
func pulledIntoProgram(t *testing.T) (*program, *Store, *catalog.Image) {
	t.Helper()
	p := newProgram(t)
	_, s := serve(t, Config{Snapshotters: map[string]string{"other": p.socket}}, layered(t, v1.Config{}))
	img := test.Value(s.Pull(t.Context(), pull.Request{Ref: app, Snapshotter: "other"}))(t)
	return p, s, img
}

// answers waits until the store has noticed that the snapshotter answers, or does not.
func answers(t *testing.T, s *Store, want bool) {
	t.Helper()
	test.Eventually(t, fmt.Sprintf("the snapshotter is ready: %v", want), func() bool { return (s.Ready("other") == nil) == want })
}

// Containers and images that were removed while a snapshotter did not answer are removed from the
// snapshotter once it answers.
func TestRemovedWhileASnapshotterWasAway(t *testing.T) {
	p, s, img := pulledIntoProgram(t)
	test.Must(t, s.Retain(t.Context(), nil))
	test.Must(t, test.Err(s.PrepareRootfs(t.Context(), "c1", img, "other", nil)))
	p.server.Stop()
	answers(t, s, false)
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", "other"))
	test.Must(t, s.Remove(t.Context(), img.ID))
	<-s.views.Work.Collector.Request()
	if len(p.left(t)) == 0 {
		t.Fatal("the stopped snapshotter has no snapshots left to remove: the test checks nothing")
	}
	p.start(t)
	answers(t, s, true)
	test.Eventually(t, "the snapshotter has removed the unreferenced snapshots", func() bool { return len(p.left(t)) == 0 })
}

// Root filesystems of containers that were removed while neither berth nor the snapshotter ran are
// removed once the snapshotter answers.
func TestOrphansOfASnapshotterThatIsAway(t *testing.T) {
	p, s, img := pulledIntoProgram(t)
	for _, id := range []string{"kept", "orphan"} {
		test.Must(t, test.Err(s.PrepareRootfs(t.Context(), id, img, "other", nil)))
	}
	all := len(p.left(t))
	p.server.Stop()
	s = reopen(t, s)
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "kept", ChainID: img.ChainID, Snapshotter: "other"}}))
	p.start(t)
	answers(t, s, true)
	test.Must(t, test.Err(s.PrepareRootfs(t.Context(), "later", img, "other", nil)))
	test.Eventually(t, "there are as many snapshots as before: the orphan's is replaced by the later one", func() bool { return len(p.left(t)) == all })
	for _, id := range []string{"kept", "later"} {
		if !hasRootfs(t, s, id, "other") {
			t.Errorf("%s has no root filesystem", id)
		}
	}
}

// Layers that a power cut may have torn are not used, however late their snapshotter answers.
func TestTornLayersOfASnapshotterThatIsAway(t *testing.T) {
	p, s, img := pulledIntoProgram(t)
	ctx := disk.InNamespace(t.Context())
	info := test.Value(s.files.Layers["other"].Stat(ctx, img.ChainID.String()))(t)
	test.Eventually(t, "all layers are flushed", func() bool { return len(marksOf(t, s.Root())) == 0 })
	test.Must(t, s.Close())
	test.Must(t, os.WriteFile(filepath.Join(s.Root(), disk.UnflushedDir, info.Labels["berth.dev/unpacking"]), []byte("another boot"), 0o600))
	p.server.Stop()
	s = test.Value(Open(t.Context(), s.cfg))(t)
	test.Must(t, s.Retain(t.Context(), nil))
	if len(marksOf(t, s.Root())) == 0 {
		t.Error("the marks of the torn layers were removed while the snapshotter did not answer")
	}
	p.start(t)
	answers(t, s, true)
	if done, err := unpack.IsUnpacked(ctx, s.files.Layers["other"], img.ChainID); done || err != nil {
		t.Errorf("the torn layers count as unpacked: %v, %v", done, err)
	}
	test.Eventually(t, "the marks are removed", func() bool { return len(marksOf(t, s.Root())) == 0 })
	test.Must(t, s.Close())
}

// Open does not wait for a snapshotter that accepts connections and is stuck in a call.
func TestStartBesideASnapshotterThatIsStuck(t *testing.T) {
	p, s, img := pulledIntoProgram(t)
	test.Must(t, test.Err(s.PrepareVolume(t.Context(), "c1", img, "other")))
	test.Must(t, s.Close())
	p.stuck.Store(true)
	opened := make(chan error, 1)
	go func() {
		var err error
		s, err = Open(t.Context(), s.cfg)
		opened <- err
	}()
	select {
	case err := <-opened:
		test.Must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Open waits for the stuck snapshotter")
	}
	p.stuck.Store(false)
	answers(t, s, true)
	if mounts, err := s.PrepareVolume(t.Context(), "c2", img, "other"); err != nil || len(mounts) == 0 {
		t.Errorf("PrepareVolume after the snapshotter works again: %v, %v", mounts, err)
	}
	test.Must(t, s.Close())
}
