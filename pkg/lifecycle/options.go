package lifecycle

import (
	"context"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Loader reads the configuration. All methods may be called from any goroutine.
type Loader interface {
	// Load reads and validates all files strictly. On an error, usually config.Problems, nothing of
	// the configuration may be used.
	Load(ctx context.Context) (*config.Config, error)
	// InForce stores a configuration that has taken effect: the next start uses it if the files
	// have mistakes.
	InForce(ctx context.Context, cfg *config.Config)
	// Paths returns the files and directories that Load reads, including those that do not exist. A
	// change of one of them, or in one, triggers a reload.
	Paths() []string
}

// Prober checks whether a handler can run pods on this machine. It is called often and should
// examine only what has changed, unless depth requires more. The error's text is the reason why the
// handler cannot run pods. The Runtime may be nil; beside an error it holds only the SHA256 of the
// binary.
type Prober interface {
	Check(ctx context.Context, d *handler.Definition, depth probe.Depth) (*probe.Runtime, error)
}

// CapabilitySource returns a handler's capabilities, once its Prober has returned rt, which may be
// nil. It must return when ctx ends.
type CapabilitySource interface {
	Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime) capability.Table
}

// PodCounter counts the sandboxes of each handler, including sandboxes being created and handlers
// that are in no table. It answers from memory.
type PodCounter interface {
	Pods() map[string]int
}

// Publisher turns a plan into the table that routes new pods. A rejected plan does not take effect.
// Publish is called with the Manager's lock held, and must not call back.
type Publisher interface {
	Publish(p *Plan) error
}

// Announcer is notified when a reload begins and ends. A silent reload, such as after a poll of the
// files, is announced only at its end, and only if something changed, or if its error is new or the
// error of the reload before is gone.
type Announcer interface {
	Reloading(ctx context.Context)
	Reloaded(ctx context.Context, c Current, handlers []Handler)
}

// Options configure a Manager. Fields are required unless their comment allows nil.
type Options struct {
	// Config is the configuration to start with. Its Rejected mistakes are reported as those of
	// a failed reload. Its [handlers] section decides whether files are watched and how often
	// handlers are probed.
	Config     *config.Config
	Loader     Loader
	Prober     Prober
	PodCounter PodCounter
	Publisher  Publisher
	// Dir is the absolute path of the directory for decisions and history; it must survive a reboot.
	Dir              string
	CapabilitySource CapabilitySource
	// Announcer may be nil.
	Announcer Announcer
}
