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
	test.Checkf(t, n.Reserve("pod", "a"), "the owner itself is refused")
	test.Refused(t, n.Reserve("pod", "b"), errdefs.IsAlreadyExists, "a")
	n.Release("pod", "b") // not its owner
	test.Fails(t, n.Reserve("pod", "b"), "a stranger released the name")
	n.Release("pod", "a")
	test.Check(t, n.Reserve("pod", "b"))
}
