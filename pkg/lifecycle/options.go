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
	// Load reads and validates everything, strictly: an error, usually
	// config.Problems, means that nothing of it may be used.
	Load(ctx context.Context) (*config.Config, error)
	// InForce keeps a configuration that has come into force: the next start uses it if the
	// files have mistakes.
	InForce(ctx context.Context, cfg *config.Config)
	// Paths are the files and directories that Load reads, whether they exist or
	// not. A change of one of them, or in one, is a reason to load again.
	Paths() []string
}

// Prober finds out whether a handler can run pods on this machine. It is called
// often, and should only look closely at what has changed, unless depth says more. The
// error's text is the reason why it cannot. An answer may come without a Runtime;
// one beside an error says no more than the SHA256 of what was looked at.
type Prober interface {
	Check(ctx context.Context, d *handler.Definition, depth probe.Depth) (*probe.Runtime, error)
}

// CapabilitySource says what a handler can do for pods, once its Prober has seen rt, which
// may be nil. It may take as long as a probe, and answers within the time of ctx.
type CapabilitySource interface {
	Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime) capability.Table
}

// LivePods counts the sandboxes of each handler, also of handlers that no table
// has, and including those that are being created. It answers from memory.
type LivePods interface {
	Live() map[string]int
}

// Publisher makes a plan the table that new pods are routed by. A plan that it
// refuses is not in force. It is called with the Manager's lock held, and must
// not call back.
type Publisher interface {
	Publish(p *Plan) error
}

// Announcer hears when a reload begins and when it is over. Of one that nobody asked
// for it hears only when it is over, and only if something came of it.
type Announcer interface {
	Reloading(ctx context.Context)
	Reloaded(ctx context.Context, c Current, handlers []Handler)
}

// Options are what a Manager needs. Those without a remark are required.
type Options struct {
	// Config is the configuration to start with. Its Rejected mistakes are reported as those of
	// a failed reload. Its [handlers] section decides whether files are watched and how often
	// handlers are probed.
	Config *config.Config
	Loader Loader
	Prober Prober
	Live   LivePods
	// Publisher takes over tables.
	Publisher Publisher
	// Dir is where intents are kept: the absolute path of a directory that survives a reboot.
	Dir              string
	CapabilitySource CapabilitySource
	// Announcer may be nil.
	Announcer Announcer
}
