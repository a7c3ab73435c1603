package remote

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

// A pod stays a pod of the handler that it was made under, or adopted for, when
// other handlers come to lead to its daemon by the same name, or its own leads
// elsewhere. The daemon does not say which, so it is kept here.

// naming says by which of our names a sandbox goes.
type naming struct {
	names *names
	known *lastknown.Pods
}

// sandbox is the name of one that the daemon says is of a handler of its own. Of a default
// one, or where it does not say, as CRI-O, it is the handler that the sandbox counts for.
func (n naming) sandbox(id, theirs string) string {
	if name := n.known.Assigned(id); name != "" {
		return name
	}
	if theirs == "" {
		return n.names.owner("")
	}
	return n.names.ours(theirs)
}

func (n naming) list(f wire.Frame) wire.Frame {
	return wire.Replaced(f, wire.ItemsField, func(item []byte) []byte {
		return wire.WithText(item, wire.SandboxHandlerField, n.sandbox(wire.Text(item, wire.IDField), wire.Text(item, wire.SandboxHandlerField)))
	})
}

// status is the answer about one sandbox with our name.
func (n naming) status(f wire.Frame, id string) wire.Frame {
	return wire.Replaced(f, wire.StatusField, func(s []byte) []byte {
		return wire.WithText(s, wire.StatusHandlerField, n.sandbox(id, wire.Text(s, wire.StatusHandlerField)))
	})
}

// inventory is what the daemon has, by our names.
func (n naming) inventory() []handler.Owned {
	s, containers := n.known.State(), map[string][]string{}
	for id, c := range s.Containers {
		containers[c.GetPodSandboxId()] = append(containers[c.GetPodSandboxId()], id)
	}
	all := make([]handler.Owned, 0, len(s.Sandboxes))
	for id, p := range s.Sandboxes {
		of := cmp.Or(n.known.Assigned(id), n.names.owner(p.GetRuntimeHandler()))
		all = append(all, handler.Owned{Sandbox: id, Handler: of, UID: p.GetMetadata().GetUid(), Containers: containers[id]})
	}
	return all
}

// assignedFor is the handler to keep of a sandbox that is made under a handler of the daemon's,
// empty if it needs none: its daemon may leave the handler out of what it says, as CRI-O
// does, and must lead to the same one by both.
func (n naming) assignedFor(ctx context.Context, theirs string) string {
	if d := handler.DefinitionFrom(ctx); d != nil && (n.names.owner(theirs) != d.Name || n.names.owner("") != d.Name) {
		return d.Name
	}
	return ""
}

// leaving are the handlers of those whose name would be another with other handlers.
func (n naming) leaving(next []lastknown.Handler) map[string]string {
	now, then := n.names.current.Load(), translationOf(next)
	if slices.Equal(now.handlers, then.handlers) {
		return nil
	}
	kept := map[string]string{}
	for id, p := range n.known.State().Sandboxes {
		theirs := p.GetRuntimeHandler()
		if our, there := now.ours[theirs]; there && then.ours[theirs] != our {
			kept[id] = our
		}
	}
	return kept
}
