package task

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/usage"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// supervised is the Runner of a sandbox on an OCI runtime. Its supervisor calls the runtime,
// journals its actions, and has a successor when it dies.
type supervised struct {
	*Service
	sandbox *pod.Sandbox
}

// SupervisorKey names the supervisor of a new sandbox: all pods with the same settings and binaries
// of a handler and the same berth-shim binary share one, unless each pod has its own.
func SupervisorKey(d *handler.Definition, runtime []keep.Binary, shimHash, sandbox string) string {
	if d.Supervision == handler.SupervisionPod {
		return shim.OnePod + sandbox[:16]
	}
	runs := *d
	runs.Limits, runs.Candidate, runs.ProbeSelfCheck, runs.SelfCheckTimeout, runs.Conforms = handler.Limits{}, nil, false, 0, nil // these do not change how a pod runs
	generation := []string{runs.Digest(), shimHash}
	for _, one := range runtime {
		generation = append(generation, one.SHA256)
	}
	sum := sha256.Sum256([]byte(strings.Join(generation, "\n")))
	return d.Name[:min(len(d.Name), 24)] + "-" + hex.EncodeToString(sum[:8])
}

func (r *supervised) Name() string { return r.sandbox.Spec().Supervisor }

func (r *supervised) Prepare(ctx context.Context) error {
	_, err := r.Client(ctx)
	return err
}

func (r *supervised) Launch(ctx context.Context) (*shim.Client, error) { return r.Client(ctx) }

func (r *supervised) Client(ctx context.Context) (*shim.Client, error) {
	return r.shims.Supervisor(ctx, r.sandbox.Spec().Supervisor)
}

func (r *supervised) Keep(ctx context.Context, t shim.Kept) {
	if !r.sandbox.HostProcesses {
		t.PID = 0 // the pid is that of the sandbox, not of the container
	}
	client, err := r.Client(ctx)
	if err == nil {
		err = r.shims.Keep(ctx, r.sandbox.Spec().Supervisor, client, t)
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", r.sandbox.ID()).WithField("container", t.ID).Warn("Failed to hand task descriptors to the keeper")
	}
}

// ReadLog does nothing: supervisors write their logs to their own directories.
func (*supervised) ReadLog(context.Context) error { return nil }

func (r *supervised) Options(o pod.TaskOptions) (*anypb.Any, error) {
	s := r.sandbox.Spec()
	d, kept := r.binaries.Runtimes.Of(s), s.Pinned
	uid, gid := s.Plan.Root()
	return anypb.New(&supervisorapi.TaskOptions{
		Runtime:       d.Path,
		Root:          r.pods.RuntimeRoot(d),
		GlobalFlags:   GlobalFlags(d),
		SystemdCgroup: kept.CgroupDriver == cgroup.Systemd,
		NoPivotRoot:   d.OCI.NoPivotRoot,
		NoNewKeyring:  d.OCI.NoNewKeyring,
		Kernel:        string(s.Plan.Kernel),
		LogDirectory:  o.LogDirectory,
		LogPath:       o.LogPath,
		MaxLogLine:    int32(kept.MaxLogLineSize),
		IoUid:         uid,
		IoGid:         gid,
		FailureLog:    r.pods.FailureLog(d.Name),
		CallTimeoutMs: (CallTimeout(d) + RestoreTime(o.Checkpoint)).Milliseconds(),
	})
}

// GlobalFlags are the flags before the subcommand: the handler's, and gVisor's configuration file.
func GlobalFlags(d *handler.Definition) []string {
	flags := slices.Clone(d.OCI.GlobalFlags)
	if d.ConfigPath != "" {
		flags = append(flags, "--config="+d.ConfigPath)
	}
	return flags
}

// LaunchTimeout exceeds the limit of one call: the supervisor kills the runtime's call at that
// limit, and then reports why.
func (r *supervised) LaunchTimeout() time.Duration {
	return CallTimeout(r.sandbox.Spec().Definition) + pod.CreatePatience
}

func (r *supervised) Attribute(err error) error {
	if shim.Lost(err) || shim.IsUnresponsive(err) {
		return err // the supervisor's error, not the runtime's
	}
	return attributed(err)
}

// Exit also returns the fields of the exit record that the Task API does not have.
func (r *supervised) Exit(ctx context.Context, task string) (pod.Exit, error) {
	exit, err := awaitExit(ctx, r, task)
	if err != nil {
		return exit, err
	}
	if j, err := r.journaled(task); err == nil {
		exit.OOM, exit.Unknown, exit.Why = j.OOM, j.Unknown, j.Why
	}
	return exit, nil
}

// journaled is the supervisor's exit record.
func (r *supervised) journaled(task string) (journal.Exit, error) {
	return journal.ReadExit(r.shims.SupervisorDir(r.sandbox.Spec().Supervisor), task)
}

// Gone returns false for a broken connection: the successor is asked again.
func (*supervised) Gone(err error) bool { return errdefs.IsNotFound(err) }

// ExitRecord reads the supervisor's exit record.
func (r *supervised) ExitRecord(_ context.Context, task string, _ error) (pod.Exit, error) {
	j, err := r.journaled(task)
	if err != nil {
		return lostExit(), nil //nolint:nilerr // the exit is unknown
	}
	return pod.Exit{Status: j.Status, At: j.Time(), OOM: j.OOM, Unknown: j.Unknown, Why: j.Why}, nil
}

func (r *supervised) Delete(ctx context.Context, task string) error {
	err := endBy(ctx, r, task)
	if r.Replaced(ctx, r.sandbox, err) {
		return r.Delete(ctx, task)
	}
	return err
}

func (r *supervised) End(ctx context.Context) error { return r.Delete(ctx, r.sandbox.ID()) }

// StopOrKill kills the pod by its cgroups if end fails: its supervisor may be unresponsive and have
// no successor. The killed containers become EXITED once a later call reaches a successor.
func (r *supervised) StopOrKill(ctx context.Context, end func(context.Context) error) error {
	err := end(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	for _, task := range r.tasksOf(r.sandbox) {
		_, kerr := killGroup(ctx, r.leftoversOf(r.sandbox, task).group)
		err = errors.Join(err, kerr)
	}
	return err
}

// OpenLog does nothing: a supervisor writes the logs of its own tasks.
func (*supervised) OpenLog(context.Context, *pod.Container) error { return nil }

// FlushLog does nothing: a supervisor flushes the log of a task before it answers Wait.
func (*supervised) FlushLog(context.Context, *pod.Container) error { return nil }

// CloseLog does nothing: see OpenLog.
func (*supervised) CloseLog(context.Context, *pod.Container) error { return nil }

func (r *supervised) Usage(ctx context.Context, container string) (cgroup.Stats, error) {
	used, err := taskUsage(ctx, r, container)
	return usage.GVisorOnly(used), err
}

// KilledForMemory returns false: the exit records contain OOM kills.
func (*supervised) KilledForMemory(context.Context, string) bool { return false }

// CRIUConfig is empty for crun: its libcriu rejects the file before version 4.2, and then every
// checkpoint fails. The supervisor configures crun by flags and the environment.
func (r *supervised) CRIUConfig(bundle string, rt *probe.Runtime) string {
	if !r.sandbox.HostProcesses || rt != nil && rt.Name == probe.Crun {
		return ""
	}
	return filepath.Join(bundle, criufiles.ConfigFile)
}

// taskUsage measures a task by a call of the Task API.
func taskUsage(ctx context.Context, by pod.Connection, task string) (cgroup.Stats, error) {
	client, err := by.Client(ctx)
	if err != nil {
		return cgroup.Stats{}, err
	}
	resp, err := client.Task.Stats(ctx, &taskapi.StatsRequest{ID: task})
	if err != nil {
		return cgroup.Stats{}, FromShim(err)
	}
	m, err := typeurl.UnmarshalAny(resp.GetStats())
	if err != nil {
		return cgroup.Stats{}, err
	}
	return usage.FromMetrics(m)
}
