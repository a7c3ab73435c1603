package pod

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/reserve"
)

func TestNames(t *testing.T) {
	n := reserve.NewNames()
	test.Must(t, n.Reserve("pod", "a"))
	test.Checkf(t, n.Reserve("pod", "a"), "a second reservation by the owner")
	test.Refused(t, n.Reserve("pod", "b"), errdefs.IsAlreadyExists, "a")
	n.Release("pod", "b") // b is not the owner
	test.Fails(t, n.Reserve("pod", "b"), "the name was released by another owner")
	n.Release("pod", "a")
	test.Check(t, n.Reserve("pod", "b"))
}
