package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// foreign is the Runner of a sandbox on a foreign shim: one process for this sandbox alone, without
// a successor.
type foreign struct {
	*Service
	sandbox *pod.Sandbox
	// found runs once, when the shim is found dead; living has the tasks that ran then.
	found  sync.Once
	living map[string]bool
}

// Name is the shim's address, or the sandbox's id until the address is known.
func (r *foreign) Name() string {
	if ep := r.sandbox.Status().Shim; ep != nil {
		return ep.Address
	}
	return r.sandbox.ID()
}

// Prepare does nothing: the shim cannot start without the sandbox's files.
func (*foreign) Prepare(context.Context) error { return nil }

func (r *foreign) Launch(ctx context.Context) (*shim.Client, error) {
	s := r.sandbox
	options, err := r.Options(pod.TaskOptions{})
	if err != nil {
		return nil, err
	}
	ep, client, err := r.shims.StartForeign(ctx, shim.Start{Binary: r.binaries.Runtimes.Of(s.Spec()).Path, ID: s.ID(), Bundle: r.pods.ProcessBundle(s.ID()), Options: options})
	if err != nil {
		return nil, r.Attribute(err)
	}
	failpoint.Hit(failpoint.SandboxShimStarted)
	return client, s.Update(func(st *pod.SandboxStatus) error { st.Shim = &ep; return nil })
}

func (r *foreign) Client(ctx context.Context) (*shim.Client, error) {
	ep, err := r.endpoint(ctx)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", r.sandbox.ID(), err)
	}
	return r.shims.Foreign(ctx, ep)
}

// endpoint returns the recorded address of the shim. If the daemon was killed before it recorded
// the address, the answer of the shim's start has it.
func (r *foreign) endpoint(ctx context.Context) (shim.Endpoint, error) {
	if ep := r.sandbox.Status().Shim; ep != nil {
		return *ep, nil
	}
	return r.shims.Started(ctx, r.pods.ProcessBundle(r.sandbox.ID()))
}

// Keep does nothing: a foreign shim has no successor to inherit descriptors.
func (*foreign) Keep(context.Context, shim.Kept) {}

// ReadLog needs no connection: a shim that accepts no connection now may recover.
func (r *foreign) ReadLog(ctx context.Context) error {
	s := r.sandbox
	ep, err := r.endpoint(ctx)
	if err != nil {
		return err
	}
	return r.shims.ReadLog(shim.Start{Binary: s.Spec().Definition.Path, ID: s.ID(), Bundle: r.pods.ProcessBundle(s.ID())}, ep)
}

func (r *foreign) Options(pod.TaskOptions) (*anypb.Any, error) {
	s := r.sandbox.Spec()
	return shimOptions(r.binaries.Runtimes.Of(s), s.Plan, s.Pinned.CgroupDriver == cgroup.Systemd)
}

// shimOptions are containerd's runc options for its runc shim, and a configuration path and body
// for other foreign shims. As in containerd, their type URL has no prefix: shims with typeurl
// before version 2 do not accept a prefix.
func shimOptions(d *handler.Definition, plan pod.Plan, systemd bool) (*anypb.Any, error) {
	if !handler.IsRuncShim(d.Path) {
		if d.ConfigPath == "" && d.ShimOptionsTOML == "" {
			return nil, nil
		}
		return typeurl.MarshalAnyToProto(&runtimeoptions.Options{TypeUrl: d.ShimOptionsType, ConfigPath: d.ConfigPath, ConfigBody: []byte(d.ShimOptionsTOML)})
	}
	o := &runcoptions.Options{SystemdCgroup: systemd, Root: d.Root}
	given := make(map[string]any, len(d.ShimOptions))
	for key, v := range d.ShimOptions {
		// Keys begin with a capital, as in containerd's configuration: BinaryName.
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

func (r *foreign) LaunchTimeout() time.Duration { return CallTimeout(r.sandbox.Spec().Definition) }

func (*foreign) Attribute(err error) error { return attributed(err) }

func (r *foreign) Exit(ctx context.Context, task string) (pod.Exit, error) {
	return awaitExit(ctx, r, task)
}

func (*foreign) Gone(err error) bool { return errdefs.IsNotFound(err) || errors.Is(err, shim.ErrGone) }

func (r *foreign) ExitRecord(ctx context.Context, task string, err error) (pod.Exit, error) {
	if errors.Is(err, shim.ErrGone) {
		return r.cleanUp(ctx, task, err)
	}
	return lostExit(), nil
}

func (r *foreign) Delete(ctx context.Context, task string) error {
	err := endBy(ctx, r, task)
	if shim.Lost(err) {
		err = endBy(ctx, r, task) // the next connection fails with ErrGone if the shim is gone
	}
	if shim.Lost(err) {
		_, err = r.cleanUp(ctx, task, err)
	}
	return err
}

func (r *foreign) Usage(ctx context.Context, container string) (cgroup.Stats, error) {
	return taskUsage(ctx, r, container)
}

// KilledForMemory reads the cgroup's OOM count, which exists until the task is deleted. If systemd
// has removed the cgroup with its last process, it counts the kills in the kernel's log.
func (r *foreign) KilledForMemory(ctx context.Context, cgroupsPath string) bool {
	if !r.sandbox.HostProcesses {
		return false
	}
	group := cgroup.HostPaths(cgroupsPath)
	if kills, err := cgroup.OOMKills(group); err == nil && kills > 0 {
		return true
	}
	logged := cgroup.KernelPath(cgroupsPath)
	return logged != "" && !group.Exists() && r.kernelLog.Kills(ctx, logged) > 0
}

// CRIUConfig is empty for all shims but containerd's runc shim.
func (r *foreign) CRIUConfig(bundle string, _ *probe.Runtime) string {
	if !handler.IsRuncShim(r.sandbox.Spec().Definition.Path) {
		return ""
	}
	return filepath.Join(bundle, criufiles.ConfigFile)
}

// ConfigureCRIU configures no pipes for a checkpoint: the shim creates them and the runtime
// restores them. For a restore it maps the pipes that the checkpoint's stdio.json names.
func (r *foreign) ConfigureCRIU(call pod.CRIUCall) (func() error, error) {
	file := r.CRIUConfig(call.Bundle, nil)
	if file == "" {
		return func() error { return nil }, nil
	}
	text, err := criufiles.Config(shimRuntime, call.Bundle, call.Images, call.OpenTCP)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(file, text, 0o600, atomicfile.Relaxed); err != nil {
		return nil, err
	}
	return func() error { return atomicfile.Remove(file) }, nil
}

// shimRuntime is the runtime of the runc shim. The node's administrator may have configured CRIU by
// this name.
const shimRuntime = "runc"

// ExplainRestore reads CRIU's log in the runc shim's work directory.
func (*foreign) ExplainRestore(err error, bundle string) error {
	return criufiles.ExplainRestore(err, filepath.Join(bundle, "work"))
}

// ExplainCheckpoint reads CRIU's log in the work directory of the call.
func (*foreign) ExplainCheckpoint(err error, dir string) error {
	return criufiles.ExplainCheckpoint(err, dir)
}

// openLogTimeout exceeds the wait for an unresponsive supervisor.
const openLogTimeout = 10 * time.Second

// OpenLog makes a supervisor read the pipes of c into its log: a foreign shim does not write the
// CRI's format.
func (r *foreign) OpenLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	io := r.pods.Stdio(c)
	request := &supervisorapi.OpenStdioRequest{
		Id: c.ID(), Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Terminal: c.Config().GetTty(),
		LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, MaxLogLine: int32(r.sandbox.Spec().Pinned.MaxLogLineSize),
	}
	// CloseLog must not overtake this call, which therefore ignores the caller's cancellation.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openLogTimeout)
	defer cancel()
	if _, err = writer.Supervisor.OpenStdio(ctx, request); err != nil {
		return fmt.Errorf("open log: %w", FromShim(err))
	}
	return nil
}

// FlushLog waits for at most a second, which the supervisor enforces: when an exit is reported, the
// container's last lines should be readable, but they must not delay the report for long.
func (r *foreign) FlushLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	_, err = writer.Supervisor.FlushStdio(ctx, &supervisorapi.FlushStdioRequest{Id: c.ID()})
	return FromShim(err)
}

func (r *foreign) CloseLog(ctx context.Context, c *pod.Container) error {
	writer, err := r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	if _, err := writer.Supervisor.CloseStdio(ctx, &supervisorapi.CloseStdioRequest{Id: c.ID()}); err != nil {
		if r.Replaced(ctx, r.sandbox, err) {
			return r.CloseLog(ctx, c)
		}
		return fmt.Errorf("close log: %w", FromShim(err))
	}
	return nil
}
