package lifecycle

import (
	"time"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Handler is a snapshot of one handler.
type Handler struct {
	// Definition is never nil. For a handler in an unreadable file, and for one that is no longer
	// configured, it may hold only the name and the origin.
	Definition *handler.Definition
	// Digest is the Definition's.
	Digest string
	State  handler.State
	// Default is set for the handler of pods that name none.
	Default bool
	// Configured is false for a handler that was removed from the configuration and still has pods.
	Configured bool
	// Since is the generation that first had the Definition.
	Since uint64
	// Pods counts the handler's sandboxes, including those being created.
	Pods int
	// Runtime is the result of the last successful probe of this Definition, or nil.
	Runtime *probe.Runtime
	// Capabilities are the handler's on this node; empty if not checked.
	Capabilities capability.Table
	// Probed is when the last probe ended, ProbeError its error or "". The handler can be ready
	// despite an error (see probe.Transient).
	Probed     time.Time
	ProbeError string
	// Intent is the operator's intent, or nil.
	Intent *Intent
	// Rollout is the rollout of a candidate binary, or nil without one.
	Rollout *rollout.Status
	// Starts summarizes its last starts.
	Starts Starts
}

// Starts summarizes the last starts of a handler's sandboxes and containers since the daemon
// started. Not counted are starts on a rollout's candidate, and failures because of the pod itself.
type Starts struct {
	// Recent counts the remembered starts, Failed the failed ones among them. InARow counts the
	// failures since the last success; it is 0 ten minutes after the last failure.
	Recent, Failed, InARow int
	// Error is the error of the last failed start, in one line, and At its time.
	Error string
	At    time.Time
}

// Current is the current configuration, table and last reload.
type Current struct {
	// Generation is the table's: it is 1 when the daemon starts, and grows with every change.
	Generation uint64
	// Digest covers all Definitions and the default handler.
	Digest string
	// Default is the name of the default handler.
	Default string
	// Loaded is when the current configuration was read, and Trigger why.
	Loaded  time.Time
	Trigger Trigger
	// Problems are mistakes of imported files, and of the state on disk.
	Problems []string
	// NeedRestart are keys with changed values that take effect only after a restart of the daemon.
	NeedRestart []config.Change
	// Config is the effective configuration: keys in NeedRestart have their old value.
	Config *config.Config
	// Last is the outcome of the last reload, failed ones included; nil before the first. A start
	// with the last accepted configuration counts as a failed reload.
	Last *Outcome
}

// Trigger is the origin of a reload.
type Trigger string

// Triggers of reloads.
const (
	TriggerStart  Trigger = "start"
	TriggerSignal Trigger = "signal"
	TriggerFiles  Trigger = "files"
	TriggerAdmin  Trigger = "admin"
)

// triggers are the triggers of requests in rising precedence: requests that share a reload get the
// highest one.
var triggers = []Trigger{TriggerFiles, TriggerSignal, TriggerAdmin}

// Outcome is the result of a reload. A failed one has an Error and changed nothing.
type Outcome struct {
	Trigger Trigger
	At      time.Time
	Took    time.Duration
	// Generation and Digest are those after the reload.
	Generation uint64
	Digest     string
	// Changed is set if the reload produced a new table.
	Changed bool
	// Diff holds the changes of handlers and of other keys.
	Diff config.Diff
	// NotReady are the handlers of the new configuration that accept no pods, with the reasons.
	NotReady map[string]string
	// Error is why nothing was changed, or nil. Problems are its lines.
	Error    error
	Problems []string
}
