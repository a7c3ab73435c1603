package remote

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

// A pod keeps the handler that it was created under, or adopted for, even if other handlers come to
// use its daemon with the same remote name, or its own handler is moved to another daemon. The
// daemon does not report our handler, so it is stored here.

// naming maps a sandbox to the name of its handler in this berth.
type naming struct {
	names *names
	known *lastknown.Pods
}

// sandbox returns the handler of a sandbox: the stored one, else ours for theirs. theirs is empty
// for the daemon's default handler, or if the daemon omits it as CRI-O does; the sandbox then
// counts for the owner of the default.
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

// status puts our name into the answer about one sandbox.
func (n naming) status(f wire.Frame, id string) wire.Frame {
	return wire.Replaced(f, wire.StatusField, func(s []byte) []byte {
		return wire.WithText(s, wire.StatusHandlerField, n.sandbox(id, wire.Text(s, wire.StatusHandlerField)))
	})
}

// inventory returns the daemon's sandboxes and containers, by our names.
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

// assignedFor returns the handler to store for a sandbox that is created under a remote handler,
// empty if both the remote handler and the daemon's default already map to it: the daemon may omit
// the handler in its answers, as CRI-O does.
func (n naming) assignedFor(ctx context.Context, theirs string) string {
	if d := handler.DefinitionFrom(ctx); d != nil && (n.names.owner(theirs) != d.Name || n.names.owner("") != d.Name) {
		return d.Name
	}
	return ""
}

// renamed returns the current handlers of the sandboxes that the next handlers would map to another
// name.
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
