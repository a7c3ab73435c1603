package remote

import (
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

func TestPodsInAnotherDaemon(t *testing.T) {
	b := newBed(t)
	own := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	theirs := b.Client.RunPod(t, testbed.PodSpec{Handler: "legacy", Image: b.Image, Command: []string{"sleep", "3600"}})
	b.serves(t, own, theirs)
	b.Restart(t)
	b.serves(t, own, theirs)
	own.Remove(t)
	theirs.Remove(t)
}
