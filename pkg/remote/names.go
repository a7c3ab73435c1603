package remote

import (
	"cmp"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

// names translates between this berth's names of handlers and a daemon's.
type names struct {
	current atomic.Pointer[translation]
}

type translation struct {
	// handlers are sorted by name.
	handlers     []lastknown.Handler
	ours, theirs map[string]string
	// first is the handler of pods with an unknown remote handler: the handler that uses the
	// daemon's default handler, or else the first by name.
	first string
	// same is set if there is nothing to translate.
	same bool
}

func newNames(handlers []lastknown.Handler) *names {
	n := &names{}
	n.set(handlers)
	return n
}

func (n *names) set(handlers []lastknown.Handler) { n.current.Store(translationOf(handlers)) }

// translationOf returns the translation for handlers. If several use the same remote handler, pods
// without a stored handler belong to the first by name. Pure.
func translationOf(handlers []lastknown.Handler) *translation {
	sorted := slices.SortedFunc(slices.Values(handlers), func(a, b lastknown.Handler) int { return cmp.Compare(a.Name, b.Name) })
	t := &translation{handlers: sorted, ours: map[string]string{}, theirs: map[string]string{}, same: true}
	for _, h := range sorted {
		t.theirs[h.Name] = h.Remote
		if _, there := t.ours[h.Remote]; !there {
			t.ours[h.Remote] = h.Name
		}
		t.same = t.same && h.Name == h.Remote
	}
	if len(sorted) > 0 {
		t.first = sorted[0].Name
	}
	if standard, there := t.ours[""]; there {
		t.first = standard
	}
	return t
}

// ours returns this berth's name for a daemon's handler, or name if no handler uses it.
func (n *names) ours(name string) string {
	if our, there := n.current.Load().ours[name]; there {
		return our
	}
	return name
}

// rename replaces the daemon's names at the ends of paths by this berth's.
func (n *names) rename(f wire.Frame, paths ...[]protowire.Number) wire.Frame {
	if n.current.Load().same {
		return f
	}
	for _, path := range paths {
		f = wire.Renamed(f, path, n.ours)
	}
	return f
}

func (n *names) spec(image *runtimeapi.ImageSpec) *runtimeapi.ImageSpec {
	h := image.GetRuntimeHandler()
	if h == "" || n.remote(h) == h {
		return image
	}
	image = proto.CloneOf(image)
	image.RuntimeHandler = n.remote(h)
	return image
}

// translate puts the daemon's names of handlers into the images of a container's configuration.
func (n *names) translate(c *runtimeapi.ContainerConfig) {
	if c == nil {
		return
	}
	c.Image = n.spec(c.GetImage())
	for _, m := range c.GetMounts() {
		m.Image = n.spec(m.GetImage())
	}
}

// remote returns the daemon's name for a handler of this berth.
func (n *names) remote(name string) string {
	if theirs, there := n.current.Load().theirs[name]; there {
		return theirs
	}
	return name
}

// owner returns this berth's handler for pods under a daemon's handler, see translation.first.
func (n *names) owner(name string) string {
	t := n.current.Load()
	if our, there := t.ours[name]; there {
		return our
	}
	return cmp.Or(t.first, name)
}
