package lifecycle

import (
	"cmp"
	"path/filepath"
	"time"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
)

// IntentKind is the kind of an operator's intent.
type IntentKind string

const (
	// Cordon rejects new pods of the handler.
	Cordon IntentKind = "cordon"
	// Drain is Cordon for a handler that is to be emptied.
	Drain IntentKind = "drain"
)

// Intent is an operator's intent for a handler, with its reason. It is stored by name: it survives
// restarts, and the removal and return of its handler.
type Intent struct {
	Kind   IntentKind `json:"kind"`
	Reason string     `json:"reason,omitempty"`
	Since  time.Time  `json:"since"`
	// By is the user that set it, as in "uid 0".
	By string `json:"by,omitempty"`
}

// maxReason bounds an intent's reason, in bytes: clients of the CRI read it.
const maxReason = 256

func intentFile(dir string) statefile.ByHandler[*Intent] {
	return statefile.ByHandler[*Intent]{
		Path:     filepath.Join(dir, "intents.json"),
		Unusable: "read cordons and drains of handlers; remove the file and cordon them again",
	}
}

// Known implements statefile.Decision.
func (i *Intent) Known() bool { return i != nil && (i.Kind == Cordon || i.Kind == Drain) }

func (i *Intent) phase() handler.Phase {
	if i.Kind == Drain {
		return handler.Draining
	}
	return handler.Cordoned
}

func (i *Intent) stateReason(unable string) string {
	reason := cmp.Or(i.Reason, "set by an operator")
	if unable != "" {
		reason += "; also not ready: " + unable
	}
	return reason
}
