package podcheckpoint

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestStoppedWhileCRIUWrites: a pod that is stopped in the middle of a checkpoint ends, and leaves
// nothing of it.
func TestStoppedWhileCRIUWrites(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		w := b.watchCRIU(t)
		atRest := b.Rest(t)
		for _, after := range moments {
			p := b.run(t, "one", "two")
			p.reaches(t, 1)
			w.forget(t)
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- p.TryCheckpoint(t, dir, p.containers()...) }()
			b.killWhile(t, w, "nobody", after, done)
			p.Stop(t)
			if err := <-done; err != nil && (status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "was stopped meanwhile")) {
				t.Errorf("after %v: the checkpoint ended with %v", after, err)
			} else if left := files(t, dir); err != nil && len(left) > 0 {
				t.Errorf("after %v: left are %q", after, left)
			}
			p.Remove(t)
		}
		b.NothingLeft(t, atRest)
	})
}
