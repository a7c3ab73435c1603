package podcheckpoint

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// named finds containers of the pod by the beginnings of their IDs. It refuses a repeated container.
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
		"both":                       {[]string{one.ID(), two.ID()[:20]}, func(err error) bool { return err == nil }},
		"one twice":                  {[]string{one.ID(), one.ID()[:20]}, errdefs.IsInvalidArgument},
		"a container of another pod": {[]string{other.ID()}, errdefs.IsInvalidArgument},
		"an unknown container":       {[]string{pod.NewID()}, errdefs.IsNotFound},
	} {
		if found, err := b.named(s, c.ids); !c.class(err) || err == nil && len(found) != len(c.ids) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
}
