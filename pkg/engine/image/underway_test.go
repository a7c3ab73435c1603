package image

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// Underway reports the stage of each layer during a pull.
func TestUnderway(t *testing.T) {
	s, g, small, big := breaksOff(t, 2<<20)
	held := g.hold()
	done := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), pull.Request{Ref: app})
		done <- err
	}()
	test.Eventually(t, "one layer is unpacked, and one is being fetched", func() bool {
		if s.Running() != 1 || s.Fetched() < 2<<20 {
			return false
		}
		now := s.Underway(t.Context())
		if len(now) != 1 || len(now[0].Layers) != 2 {
			return false
		}
		a, b := now[0].Layers[0], now[0].Layers[1]
		return now[0].Name == app && now[0].Snapshotter == disk.Overlayfs && time.Since(now[0].Began) < time.Minute &&
			a.Digest.String() == digestOf(t, small) && a.Stage == progress.LayerUnpacked && a.Fetched == a.Size &&
			b.Digest.String() == digestOf(t, big) && b.Stage == progress.LayerFetching && b.Fetched > 1<<20 && b.Fetched < b.Size
	})
	close(held)
	test.Fails(t, <-done, "a pull that breaks off succeeded")
	if now := s.Underway(t.Context()); len(now) != 0 {
		t.Errorf("after the pull Underway reports %+v", now)
	}
}
