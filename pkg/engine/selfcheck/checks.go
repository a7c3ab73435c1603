package selfcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/session"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// checks are what a self-check pod tries in addition to running. Nil checks try nothing.
type checks struct {
	// users runs the pod in a user namespace, and disables all other checks.
	users bool
	// proof is the result; it is set when the self-check pod has finished.
	proof probe.Proof
}

// The ids of self-check pods with a user namespace: any range without the host's root.
const firstID, idCount = 1 << 20, 1 << 16

// memoryLimit is the limit that a running self-check pod gets: far above its program's usage, far
// below the memory of any node.
const memoryLimit = 64 << 20

// Prove runs a self-check pod with all checks, and another in a user namespace if the handler seems
// to support those.
func (b *Pods) Prove(ctx context.Context, d *handler.Definition, rt *probe.Runtime) (probe.Proof, error) {
	first := &checks{proof: probe.Proof{}}
	if err := b.Run(ctx, d, first); err != nil {
		return nil, err
	}
	if b.capabilities.Table(ctx, d, rt, nil).Of(capability.UserNamespaces).Answer != capability.Yes {
		return first.proof, nil
	}
	err := b.Run(ctx, d, &checks{users: true})
	switch {
	case err == nil:
		first.proof[capability.UserNamespaces] = ""
	case probe.Transient(err): // it shows nothing about the runtime
	default:
		first.proof[capability.UserNamespaces] = err.Error()
	}
	return first.proof, nil
}

func (t *checks) namespaces() *runtimeapi.NamespaceOption {
	if t == nil || !t.users {
		return nil
	}
	ids := []*runtimeapi.IDMapping{{HostId: firstID, ContainerId: 0, Length: idCount}}
	return &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}}
}

// try runs the checks in a running self-check pod. The error is that of the check of a user
// namespace, or of reading the spec; t.proof has the other results.
func (b *Pods) try(ctx context.Context, client *shim.Client, s *pod.Sandbox, t *checks) error {
	switch {
	case t == nil, s.Machine && t.users: // its process on the host is not the pod's
		return nil
	case t.users:
		return mapped(s.Status().PID)
	}
	spec, err := pod.ReadSpec(b.pods.ProcessBundle(s.ID()))
	if err != nil {
		return err
	}
	err = b.tryExec(ctx, client, s)
	if err != nil && s.Machine { // a virtual machine's own container does not have the program, which proves nothing
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Info("Self-check pod could not run a second program; its first container may be the virtual machine's own")
		return nil
	}
	t.proof.Note(capability.Exec, err)
	if s.Machine { // the host's cgroup is the machine's
		return nil
	}
	group := cgroup.HostPaths(spec.Linux.CgroupsPath)
	if pids, err := group.Processes(); err == nil && len(pids) > 0 {
		name := capability.CgroupV1
		if b.settings.Node.CgroupUnified {
			name = capability.CgroupV2
		}
		t.proof.Note(name, nil)
	}
	if s.HostProcesses { // gVisor reports success without a change
		t.proof.Note(capability.InPlaceResize, tryResize(ctx, client, s, group))
	}
	return nil
}

func mapped(pid int) error {
	text, err := os.ReadFile(procfs.Path(pid, "uid_map"))
	if err != nil {
		return err
	}
	if want := fmt.Sprint("0 ", firstID, " ", idCount); strings.Join(strings.Fields(string(text)), " ") != want {
		return fmt.Errorf("its user namespace has unexpected IDs: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// machineExecTimeout limits an exec in a virtual machine, which may run a container of its own.
const machineExecTimeout = 20 * time.Second

func (b *Pods) exec(ctx context.Context, client *shim.Client, s *pod.Sandbox, command ...string) (*runtimeapi.ExecSyncResponse, error) {
	if s.Machine {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, machineExecTimeout)
		defer cancel()
	}
	spec, err := pod.ReadSpec(b.pods.ProcessBundle(s.ID()))
	if err != nil {
		return nil, err
	}
	p, err := ocispec.ExecProcess(spec, command, false)
	if err != nil {
		return nil, err
	}
	a, err := typeurl.MarshalAnyToProto(p)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.pods.ProcessBundle(s.ID()), "io")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	e := &session.Execution{Client: client, Container: s.ID(), ID: session.NewExecID(), KillsTree: s.KillsTree(), Dir: dir, Drain: closeGrace}
	defer e.Clean()
	exit, err := e.Run(ctx, a)
	if err != nil {
		return nil, err
	}
	return e.Answer(exit), nil
}

// tryExec runs a second program and checks its output: EINVAL, because it gets no port number.
func (b *Pods) tryExec(ctx context.Context, client *shim.Client, s *pod.Sandbox) error {
	got, err := b.exec(ctx, client, s, "/"+binaries.ConnectName, "no-port")
	if err != nil {
		return err
	}
	if got.GetExitCode() != 1 || !bytes.Equal(got.GetStdout(), []byte{byte(unix.EINVAL)}) {
		return fmt.Errorf("an exec exited with status %d and wrote %q: %s", got.GetExitCode(), got.GetStdout(), bytes.TrimSpace(got.GetStderr()))
	}
	return nil
}

// tryResize sets a memory limit and checks it in the cgroup of a self-check pod.
func tryResize(ctx context.Context, client *shim.Client, s *pod.Sandbox, group cgroup.Paths) error {
	limit := int64(memoryLimit)
	a, err := typeurl.MarshalAnyToProto(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}})
	if err != nil {
		return err
	}
	_, err = client.Task.Update(ctx, &taskapi.UpdateTaskRequest{ID: s.ID(), Resources: a})
	if err != nil {
		return task.FromShim(err)
	}
	stats, err := cgroup.ReadStats(group)
	if err != nil {
		return err
	}
	if stats.MemoryLimit.N != memoryLimit {
		return errors.New("its memory limit was changed, but its cgroup has another value")
	}
	return nil
}
