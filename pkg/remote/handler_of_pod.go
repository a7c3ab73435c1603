package remote

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-cri/berth/pkg/handler"
)

// A pod stays a pod of the handler that it was made under, or adopted for, when
// other handlers come to lead to its daemon by the same name, or its own leads
// elsewhere. The daemon does not say which, so it is kept here.

// naming says by which of our names a sandbox goes.
type naming struct {
	names *names
	known *known
}

// sandbox is the name of one that the daemon says is of a handler of its own. Of a default
// one, or where it does not say, as CRI-O, it is the handler that the sandbox counts for.
func (n naming) sandbox(id, theirs string) string {
	if name := n.known.assigned(id); name != "" {
		return name
	}
	if theirs == "" {
		return n.names.owner("")
	}
	return n.names.ours(theirs)
}

func (n naming) list(f frame) frame {
	return replaced(f, itemsField, func(item []byte) []byte {
		return withText(item, sandboxHandlerField, n.sandbox(text(item, idField), text(item, sandboxHandlerField)))
	})
}

// status is the answer about one sandbox with our name.
func (n naming) status(f frame, id string) frame {
	return replaced(f, statusField, func(s []byte) []byte {
		return withText(s, statusHandlerField, n.sandbox(id, text(s, statusHandlerField)))
	})
}

// inventory is what the daemon has, by our names.
func (n naming) inventory() []handler.Owned {
	s, containers := n.known.state(), map[string][]string{}
	for id, c := range s.containers {
		containers[c.GetPodSandboxId()] = append(containers[c.GetPodSandboxId()], id)
	}
	all := make([]handler.Owned, 0, len(s.sandboxes))
	for id, p := range s.sandboxes {
		of := cmp.Or(n.known.assigned(id), n.names.owner(p.GetRuntimeHandler()))
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
func (n naming) leaving(next []Handler) map[string]string {
	now, then := n.names.current.Load(), translationOf(next)
	if now == nil || slices.Equal(now.handlers, then.handlers) {
		return nil
	}
	kept := map[string]string{}
	for id, p := range n.known.state().sandboxes {
		theirs := p.GetRuntimeHandler()
		if our, there := now.ours[theirs]; there && then.ours[theirs] != our {
			kept[id] = our
		}
	}
	return kept
}
