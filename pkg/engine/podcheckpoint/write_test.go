package podcheckpoint

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// TestNamed containers are those of the pod, each once by whatever beginning of its id.
func TestNamed(t *testing.T) {
	all := pods(t)
	s := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{})
	one, two := enginetest.Container(t, s), enginetest.Container(t, s)
	other := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
	for _, c := range []*pod.Container{one, two, other} {
		all.Index.AddContainer(c)
	}
	b := &Service{Deps: Deps{Pods: all}}
	for name, c := range map[string]struct {
		ids   []string
		class func(error) bool
	}{
		"both":            {[]string{one.ID(), two.ID()[:20]}, func(err error) bool { return err == nil }},
		"one twice":       {[]string{one.ID(), one.ID()[:20]}, errdefs.IsInvalidArgument},
		"of another pod":  {[]string{other.ID()}, errdefs.IsInvalidArgument},
		"that is unknown": {[]string{pod.NewID()}, errdefs.IsNotFound},
	} {
		if found, err := b.named(s, c.ids); !c.class(err) || err == nil && len(found) != len(c.ids) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
}
