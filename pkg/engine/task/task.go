package task

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// defaultCallTimeout bounds one create or start call to a runtime whose handler
// says nothing.
const defaultCallTimeout = 4 * time.Minute

// CallTimeout bounds one create or start call to the handler's runtime.
func CallTimeout(d *handler.Definition) time.Duration {
	if d.ContainerCreateTimeout > 0 {
		return d.ContainerCreateTimeout
	}
	return defaultCallTimeout
}

// SupervisorKey names the supervisor of a new sandbox: all pods that one
// generation of a handler, one runtime binary and one berth-shim binary have in
// common, or the pod alone.
func SupervisorKey(d *handler.Definition, runtime []keep.Binary, shimHash, sandbox string) string {
	if d.Supervision == handler.SupervisionPod {
		return "pod-" + sandbox[:16]
	}
	runs := *d
	runs.Limits, runs.Next, runs.ProbeCanary, runs.SelfCheckTimeout = handler.Limits{}, nil, false, 0 // none is another way to run a pod
	generation := []string{runs.Digest(), shimHash}
	for _, one := range runtime {
		generation = append(generation, one.SHA256)
	}
	sum := sha256.Sum256([]byte(strings.Join(generation, "\n")))
	name := d.Name
	if len(name) > 24 {
		name = name[:24]
	}
	return name + "-" + hex.EncodeToString(sum[:8])
}

// tasks speaks with who runs the tasks of pods: supervisors, and foreign shims.
type tasks struct {
	pods     *pod.Registry
	binaries *binaries.Binaries
	settings *settings.Settings
	shims    runners
}

// runners are the processes that run tasks.
type runners interface {
	Drop(supervisor, task string)
	Supervisor(ctx context.Context, key string) (*shim.Client, error)
	Keep(ctx context.Context, key string, c *shim.Client, t shim.Kept) error
	Foreign(ctx context.Context, ep shim.Endpoint) (*shim.Client, error)
	Started(ctx context.Context, bundle string) (shim.Endpoint, error)
	DismissForeign(ctx context.Context, ep shim.Endpoint, c *shim.Client, id string) error
}

// newTasks are the tasks of pods, which shims run.
func newTasks(pods *pod.Registry, s *settings.Settings, b *binaries.Binaries, shims runners) *tasks {
	return &tasks{pods: pods, settings: s, binaries: b, shims: shims}
}

// Drop lets go of what was kept of a task.
func (t *tasks) Drop(supervisor, task string) { t.shims.Drop(supervisor, task) }

// Client returns who runs the tasks of s now.
func (t *tasks) Client(ctx context.Context, s *pod.Sandbox) (*shim.Client, error) {
	if s.Spec().Definition.Type == handler.Shim {
		ep, err := t.Endpoint(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("sandbox %s: %w", s.ID(), err)
		}
		return t.shims.Foreign(ctx, ep)
	}
	return t.shims.Supervisor(ctx, s.Spec().Supervisor)
}

// Worker is client for who begins something new.
func (t *tasks) Worker(ctx context.Context, s *pod.Sandbox) (*shim.Client, error) {
	if err := t.binaries.Runtimes.Need(s); err != nil {
		return nil, err
	}
	return t.Client(ctx, s)
}

// Options is what Create tells the process that runs the task.
func (t *tasks) Options(s *pod.SandboxSpec, logDirectory, logPath string) (*anypb.Any, error) {
	d, kept := t.binaries.Runtimes.Of(s), t.settings.Of(s)
	systemd := kept.CgroupDriver == cgroup.Systemd
	if d.Type == handler.Shim {
		return ShimOptions(d, s.Plan, systemd)
	}
	uid, gid := s.Plan.Root()
	return anypb.New(&supervisorapi.TaskOptions{
		Runtime:       d.Path,
		Root:          t.pods.RuntimeRoot(d),
		GlobalFlags:   GlobalFlags(d),
		SystemdCgroup: systemd,
		NoPivotRoot:   d.OCI.NoPivotRoot,
		NoNewKeyring:  d.OCI.NoNewKeyring,
		OwnKernel:     s.Plan.OwnKernel,
		LogDirectory:  logDirectory,
		LogPath:       logPath,
		MaxLogLine:    int32(kept.MaxLogLineSize),
		IoUid:         uid,
		IoGid:         gid,
		CallTimeoutMs: CallTimeout(d).Milliseconds(),
	})
}

// GlobalFlags are the flags before the subcommand: those of the handler, and for
// gVisor the configuration file.
func GlobalFlags(d *handler.Definition) []string {
	flags := append([]string(nil), d.OCI.GlobalFlags...)
	if d.ConfigPath != "" {
		flags = append(flags, "--config="+d.ConfigPath)
	}
	return flags
}

// ShimOptions are what a foreign shim gets: containerd's runc options for its
// runc shim, a configuration path and body for the others. Their type is written as
// containerd writes it, without the prefix of protobuf's own Any, which shims of
// typeurl before version 2 do not know.
func ShimOptions(d *handler.Definition, plan pod.Plan, systemd bool) (*anypb.Any, error) {
	if !IsRuncShim(d.Path) {
		if d.ConfigPath == "" && d.ShimOptionsTOML == "" {
			return nil, nil
		}
		return typeurl.MarshalAnyToProto(&runtimeoptions.Options{TypeUrl: d.ShimOptionsType, ConfigPath: d.ConfigPath, ConfigBody: []byte(d.ShimOptionsTOML)})
	}
	o := &runcoptions.Options{SystemdCgroup: systemd, Root: d.Root}
	given := make(map[string]any, len(d.ShimOptions))
	for key, v := range d.ShimOptions {
		// The keys are spelled as in containerd's configuration: BinaryName.
		given[strings.ToLower(key[:1])+key[1:]] = v
	}
	text, err := json.Marshal(given)
	if err == nil {
		named := &runcoptions.Options{}
		err = protojson.Unmarshal(text, named)
		proto.Merge(o, named)
	}
	if plan.User != nil {
		o.IoUid, o.IoGid = plan.Root()
	}
	if err != nil {
		return nil, fmt.Errorf("encode options of handler %q: %w: %w", d.Name, err, errdefs.ErrInvalidArgument)
	}
	return typeurl.MarshalAnyToProto(o)
}

// IsRuncShim tells whether a shim is containerd's own for runc.
func IsRuncShim(path string) bool {
	return strings.HasPrefix(filepath.Base(path), "containerd-shim-runc-")
}

// Keep holds what the task would lose with its supervisor. Failing at that
// costs only what a later crash of the supervisor would lose.
func (t *tasks) Keep(ctx context.Context, s *pod.Sandbox, c *shim.Client, what shim.Kept) {
	if s.Spec().Definition.Type != handler.OCI {
		return
	}
	if s.Spec().Plan.OwnKernel {
		what.PID = 0 // the pid is the kernel's, not the container's
	}
	if err := t.shims.Keep(ctx, s.Spec().Supervisor, c, what); err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).WithField("container", what.ID).Warn("Failed to hand task descriptors to the keeper")
	}
}

// KeptOf is what a supervisor would lose of c, whose first process is pid.
func KeptOf(l pod.Layout, c *pod.Container, pid int) shim.Kept {
	io := l.Stdio(c)
	t := shim.Kept{ID: c.ID(), PID: pid, Terminal: c.Config().GetTty()}
	for _, p := range []string{io.Stdout, io.Stderr} {
		if p != "" {
			t.Pipes = append(t.Pipes, p)
		}
	}
	return t
}
