package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
)

// IntentKind is what an operator wants of a handler.
type IntentKind string

const (
	// Cordon lets no new pods start under the handler.
	Cordon IntentKind = "cordon"
	// Drain is Cordon for a handler that is meant to become empty.
	Drain IntentKind = "drain"
)

// Intent is what an operator wants of a handler, and why. It is kept by name:
// it outlives restarts, and a handler that is taken away and comes back.
type Intent struct {
	Kind   IntentKind `json:"kind"`
	Reason string     `json:"reason,omitempty"`
	Since  time.Time  `json:"since"`
	// By is the user who wants it, as in "uid 0".
	By string `json:"by,omitempty"`
}

// maxReason bounds an intent's reason, in bytes: clients of the CRI read it.
const maxReason = 256

// intentFile is where intents are kept. One goroutine at a time may use it.
type intentFile struct{ path string }

// intentFormat is the number of the form on disk.
const intentFormat = 1

// storedIntents is the form on disk.
type storedIntents struct {
	Handlers map[string]*Intent `json:"handlers"`
}

// read returns the intents of an earlier daemon. A file that cannot be used is
// an error, and no intents.
func (f intentFile) read() (map[string]*Intent, error) {
	var s storedIntents
	if err := statefile.Read(f.path, intentFormat, &s); err != nil {
		return map[string]*Intent{}, fmt.Errorf("read cordons and drains of handlers; "+
			"remove the file and cordon them again: %w", err)
	}
	kept := map[string]*Intent{}
	for name, i := range s.Handlers {
		if i != nil && (i.Kind == Cordon || i.Kind == Drain) {
			kept[name] = i
		}
	}
	return kept, nil
}

// write replaces the file by one that survives a power cut.
func (f intentFile) write(intents map[string]*Intent) error {
	return statefile.Write(f.path, intentFormat, storedIntents{intents})
}

func (i *Intent) phase() handler.Phase {
	if i.Kind == Drain {
		return handler.Draining
	}
	return handler.Cordoned
}

func (i *Intent) told(unable string) string {
	reason := cmp.Or(i.Reason, "set by an operator")
	if unable != "" {
		reason += "; also not ready: " + unable
	}
	return reason
}
