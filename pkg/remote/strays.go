package remote

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/log"
	"google.golang.org/protobuf/encoding/protowire"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// attached is a list of containers without those whose sandbox the daemon does
// not list, and which no call could be made about. One that was made by others
// with its sandbox a moment ago is looked for in a new list of sandboxes.
func (l *lists) attached(ctx context.Context, f frame) (frame, error) {
	if !l.strays(f) {
		return f, nil
	}
	if err := l.sandboxesAnew(ctx); err != nil {
		return nil, err
	}
	return l.known.attached(f), nil
}

func (l *lists) strays(f frame) bool { return len(l.known.attached(f)) != len(f) }

// sandboxesAnew learns which sandboxes there are.
func (l *lists) sandboxesAnew(ctx context.Context) error {
	mark, p := l.known.mark(), &l.known.sandboxes
	f, err := l.whole(ctx, sandboxLists, &runtimeapi.ListPodSandboxRequest{})
	if err == nil && l.known.take(p, l.identified(ctx, f), mark, time.Now()) {
		l.learned()
	}
	return l.blame(p, err)
}

// identified is a list without items that have no id.
func (l *lists) identified(ctx context.Context, f frame) frame {
	kept := without(f, func(item []byte) bool { return text(item, idField) == "" })
	if len(kept) != len(f) {
		log.G(ctx).WithField("backend", l.name).Debug("Backend listed items without an ID; omitting them")
	}
	return kept
}

// attached is a list of containers without those whose sandbox is not known.
func (k *known) attached(f frame) frame {
	k.mu.Lock()
	sandboxes, changes := k.sandboxes, slices.Clone(k.changes)
	k.mu.Unlock()
	there := map[string]bool{}
	eachField(sandboxes.frame, func(n protowire.Number, item []byte) {
		if n == itemsField {
			there[text(item, idField)] = true
		}
	})
	for _, c := range changes {
		if c.kind == madeSandbox && c.number > sandboxes.upTo {
			there[c.sandbox.GetId()] = true
		}
	}
	return without(f, func(item []byte) bool { return !there[text(item, containerSandboxField)] })
}

// without is a list without some items; itself if there are none of them.
func without(f frame, drop func(item []byte) bool) frame {
	var kept frame
	done := 0
	for at := 0; at < len(f); {
		n, t, size := protowire.ConsumeField(f[at:])
		if size < 0 {
			return f
		}
		if n == itemsField && t == protowire.BytesType {
			_, _, head := protowire.ConsumeTag(f[at:])
			if item, _ := protowire.ConsumeBytes(f[at+head:]); drop(item) {
				kept = append(kept, f[done:at]...)
				done = at + size
			}
		}
		at += size
	}
	if done == 0 {
		return f
	}
	return append(kept, f[done:]...)
}
