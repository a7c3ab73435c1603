package podcheckpoint

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestStoppedWhileCRIUWrites: a pod can be stopped in the middle of a checkpoint, and no file of
// the checkpoint is left.
func TestStoppedWhileCRIUWrites(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		w := b.watchCRIU(t)
		atRest := b.Rest(t)
		for _, after := range moments {
			p := b.run(t, "one", "two")
			p.reaches(t, 1)
			w.forget(t)
			dir, done := p.writing(t)
			b.killWhile(t, w, "none", after, done)
			p.Stop(t)
			if err := <-done; err != nil && (status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "was stopped meanwhile")) {
				t.Errorf("stopped after %v: the checkpoint returned %v", after, err)
			} else if left := files(t, dir); err != nil && len(left) > 0 {
				t.Errorf("stopped after %v: the checkpoint left %q", after, left)
			}
			p.Remove(t)
		}
		b.NothingLeft(t, atRest)
	})
}

// TestDaemonKilledWhileCRIUWrites: CRIU outlives the daemon. The next daemon removes all files of
// the checkpoint, and the containers run on.
func TestDaemonKilledWhileCRIUWrites(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		w := b.watchCRIU(t)
		atRest := b.Rest(t)
		p := b.run(t, "one", "two")
		for _, after := range moments[:2] {
			p.reaches(t, 1)
			w.forget(t)
			dir, done := p.writing(t)
			b.killWhile(t, w, "none", after, done)
			b.Kill9(t)
			if err := <-done; status.Code(err) != codes.Unavailable {
				t.Errorf("killed after %v: the call returned %v, want Unavailable because the daemon was killed", after, err)
			}
			b.Start(t)
			nothingIn(t, dir)
			p.reaches(t, max(p.members[0].count(t), p.members[1].count(t))+2)
			b.restored(t, p, p.checkpointed(t)).Remove(t)
		}
		p.Remove(t)
		b.NothingLeft(t, atRest)
	})
}
