package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
	"github.com/berth-cri/berth/pkg/printable"
)

const (
	// maxChanges bounds the stored changes; maxChangeReason bounds their reasons, in bytes.
	maxChanges, maxChangeReason = 500, 512
	// historyFormat is the format version of the file.
	historyFormat = 1
)

// Change is one entry of the node's history.
type Change struct {
	At time.Time `json:"at"`
	// Handler is empty for a change of the whole node.
	Handler string `json:"handler,omitempty"`
	// What is "start", "reload", "added", "changed", "removed", "cordon", "drain", "uncordon",
	// "rollout" or "state".
	What string `json:"what"`
	// From and To are the states, definitions or generations before and after; may be empty.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// By is the user, as in "uid 0"; the trigger of a reload; or "berth".
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
}

// byBerth is the By of changes that berth makes by itself.
const byBerth = "berth"

// history keeps the last changes in memory, and writes them to a file in the background: the log
// already has each of them.
type history struct {
	path string
	wake chan struct{} // has room for one

	mu      sync.Mutex
	changes []Change // the oldest first
}

type storedHistory struct {
	Changes []Change `json:"changes"`
}

// readHistory returns the stored history. If the file is unreadable, it returns an error and an
// empty history.
func readHistory(dir string) (*history, error) {
	h := &history{path: filepath.Join(dir, "history.json"), wake: make(chan struct{}, 1)}
	var s storedHistory
	if err := statefile.Read(h.path, historyFormat, &s); err != nil {
		return h, err
	}
	h.changes = s.Changes
	return h, nil
}

func (h *history) add(c Change) {
	c.At = time.Now().UTC()
	c.Reason = printable.Clip(c.Reason, maxChangeReason)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, c)
	h.changes = slices.Delete(h.changes, 0, max(0, len(h.changes)-maxChanges))
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// run writes changes until ctx ends, and then once more. Changes during a write share the next one.
func (h *history) run(ctx context.Context) {
	for more := true; more; {
		select {
		case <-ctx.Done():
			more = false
		case <-h.wake:
		}
		if err := statefile.Write(h.path, historyFormat, storedHistory{h.last("")}); err != nil {
			log.G(ctx).WithError(err).Error("Failed to store the history of changes")
		}
	}
}

// last returns the changes of a handler, oldest first; of all handlers if name is empty.
func (h *history) last(name string) []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.changes), func(c Change) bool { return name != "" && c.Handler != name })
}

// reloaded records a reload with its changes of handlers; before and after are the definitions of
// all handlers.
func (h *history) reloaded(o *Outcome, from uint64, by string, before, after map[string]*handler.Definition) {
	by = cmp.Or(by, string(o.Trigger))
	c := Change{What: "reload", From: fmt.Sprintf("generation %d", from), By: by}
	if o.Error != nil {
		c.To, c.Reason = "rejected", strings.Join(o.Problems, "; ")
		h.add(c)
		return
	}
	c.To = fmt.Sprintf("generation %d", o.Generation)
	if o.Diff.DefaultFrom != o.Diff.DefaultTo {
		c.Reason = fmt.Sprintf("the default handler changed from %s to %s", o.Diff.DefaultFrom, o.Diff.DefaultTo)
	}
	h.add(c)
	for _, kind := range []struct {
		what  string
		names []string
	}{{"added", o.Diff.Added}, {"changed", o.Diff.Changed}, {"removed", o.Diff.Removed}} {
		for _, name := range kind.names {
			h.add(Change{Handler: name, What: kind.what, From: brief(before[name]), To: brief(after[name]), By: by})
		}
	}
}

func brief(d *handler.Definition) string {
	if d == nil {
		return ""
	}
	return d.Path + " (" + d.Digest()[:12] + ")"
}

type userKey struct{}

// WithUser returns a context for changes that a user makes, as in "uid 0".
func WithUser(ctx context.Context, user string) context.Context {
	return context.WithValue(ctx, userKey{}, user)
}

func userOf(ctx context.Context) string {
	user, _ := ctx.Value(userKey{}).(string)
	return user
}
