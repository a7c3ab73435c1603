package remote

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

// A pod keeps the handler that it was created under, or first mapped to, even if other handlers
// later use its daemon with the same remote name, or the pod's handler moves to another daemon. The
// daemon does not report this berth's handlers, so they are stored here.

// naming maps a sandbox to the name of its handler in this berth.
type naming struct {
	names *names
	known *lastknown.Pods
}

// sandbox returns the handler of a sandbox: the stored one, or else this berth's name for theirs,
// the daemon's name. If theirs is empty (the default handler, or a daemon such as CRI-O that omits
// the name), sandbox returns the handler that uses the daemon's default.
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

// status puts this berth's name of the handler into the answer about one sandbox.
func (n naming) status(f wire.Frame, id string) wire.Frame {
	return wire.Replaced(f, wire.StatusField, func(s []byte) []byte {
		return wire.WithText(s, wire.StatusHandlerField, n.sandbox(id, wire.Text(s, wire.StatusHandlerField)))
	})
}

// inventory returns the daemon's sandboxes and containers, with this berth's names of handlers.
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

// assignedFor returns the handler to store for a sandbox that is created under the remote handler
// theirs. It is empty if theirs and the daemon's default both map to the sandbox's handler. The
// default matters because a daemon such as CRI-O omits the handler in its answers.
func (n naming) assignedFor(ctx context.Context, theirs string) string {
	if d := handler.DefinitionFrom(ctx); d != nil && (n.names.owner(theirs) != d.Name || n.names.owner("") != d.Name) {
		return d.Name
	}
	return ""
}

// renamed returns, by ID, the current handler of each sandbox that next maps to another handler.
func (n naming) renamed(next []lastknown.Handler) map[string]string {
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
