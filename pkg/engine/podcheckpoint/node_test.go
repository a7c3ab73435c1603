package podcheckpoint

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		cpuinfo string
		want    []string
	}{
		"amd64":   {"processor\t: 0\nflags\t\t: fpu avx aes\nbugs\t: x\n\nprocessor\t: 1\nflags\t\t: other\n", []string{"aes", "avx", "fpu"}},
		"arm64":   {"processor\t: 0\nFeatures\t: fp asimd\n", []string{"asimd", "fp"}},
		"neither": {"processor\t: 0\n", nil},
	} {
		test.EqualLists(t, name, features(c.cpuinfo), c.want)
	}
	node, err := thisNode()
	if err != nil || node.Architecture == "" || node.Kernel == "" || len(node.CPUFeatures) == 0 {
		t.Errorf("this node is %+v, %v", node, err)
	}
}
