package lifecycle

import (
	"time"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Handler is what is known about one handler at one moment.
type Handler struct {
	// Definition is never nil. It has a name only (and perhaps an origin) for a
	// handler of a file that cannot be read, and for one that is gone.
	Definition *handler.Definition
	// Digest is the Definition's.
	Digest string
	State  handler.State
	// Default says that pods which name no handler get this one.
	Default bool
	// Configured is false for a handler that is gone from the configuration and
	// stays until its last pod is.
	Configured bool
	// Since is the generation that the Definition came with.
	Since uint64
	// LivePods counts its sandboxes, including those that are being created.
	LivePods int
	// Runtime is what the last probe that succeeded saw of this Definition, or nil.
	Runtime *probe.Runtime
	// Capabilities are what that can do on this node. Empty if it was not asked.
	Capabilities capability.Table
	// Probed is when the last probe ended; ProbeError why it failed, or empty. A
	// handler can be ready all the same, for a while, if that may pass.
	Probed     time.Time
	ProbeError string
	// Intent is what an operator wants, if anything.
	Intent *Intent
	// Rollout is that of a candidate binary, nil if none is configured.
	Rollout *rollout.Status
	// Starts is how its last starts ended.
	Starts Starts
}

// Starts is how the last starts of a handler's sandboxes and containers ended since the
// daemon started. Starts that failed because of their own request are not among them.
type Starts struct {
	// Recent counts the starts that are remembered, Failed those of them that failed, and
	// InARow those that failed since one succeeded, or 0 ten minutes after the last.
	Recent, Failed, InARow int
	// Error is that of the last start that failed, in one line, and At its time.
	Error string
	At    time.Time
}

// Current is what is in force.
type Current struct {
	// Generation is that of the table: it grows with every change, and begins anew with the daemon.
	Generation uint64
	// Digest is that of all Definitions and of the default handler.
	Digest string
	// Default is the name of the default handler.
	Default string
	// Loaded is when the configuration in force was read, and Trigger why.
	Loaded  time.Time
	Trigger Trigger
	// Problems are mistakes of imported files, and of the state on disk.
	Problems []string
	// NeedRestart are keys whose values in the files are not in force until the
	// daemon is started again.
	NeedRestart []config.Change
	// Config is the effective configuration: keys in NeedRestart have the value
	// that is in force.
	Config *config.Config
	// Last is the outcome of the last reload, failed ones included; nil before one. A start
	// with the last accepted configuration counts as one that failed.
	Last *Outcome
}

// Trigger says who asked for a reload.
type Trigger string

// Triggers of reloads.
const (
	TriggerStart  Trigger = "start"
	TriggerSignal Trigger = "signal"
	TriggerFiles  Trigger = "files"
	TriggerAdmin  Trigger = "admin"
)

// triggers are those of requests: when several share a reload, the last of them is its Trigger.
var triggers = []Trigger{TriggerFiles, TriggerSignal, TriggerAdmin}

// Outcome is what a reload did. One that failed has an Error, and changed nothing.
type Outcome struct {
	Trigger Trigger
	At      time.Time
	Took    time.Duration
	// Generation and Digest are those in force afterwards.
	Generation uint64
	Digest     string
	// Changed says that a new table came of it.
	Changed bool
	// Diff is what became of handlers and of other keys.
	Diff config.Diff
	// NotReady are those handlers of the new configuration that cannot run pods,
	// with the reasons.
	NotReady map[string]string
	// Error says why nothing was changed, or is nil. Problems are its lines.
	Error    error
	Problems []string
}
