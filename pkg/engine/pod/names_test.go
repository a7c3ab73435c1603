package pod

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/reserve"
)

func TestNames(t *testing.T) {
	n := reserve.NewNames()
	test.Must(t, n.Reserve("pod", "a"))
	if err := n.Reserve("pod", "a"); err != nil {
		t.Errorf("the owner itself is refused: %v", err)
	}
	err := n.Reserve("pod", "b")
	if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "a") {
		t.Errorf("second owner: %v", err)
	}
	n.Release("pod", "b") // not its owner
	if err := n.Reserve("pod", "b"); err == nil {
		t.Error("a stranger released the name")
	}
	n.Release("pod", "a")
	test.Check(t, n.Reserve("pod", "b"))
}
