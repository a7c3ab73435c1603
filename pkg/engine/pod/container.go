package pod

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/usage"
)

// Container is a container that is visible to callers.
type Container struct {
	*store.Object[ContainerSpec, ContainerStatus]
	Sandbox *Sandbox
	Op      keyedlock.Mutex // held by calls that change it: start, update, remove
	Exited  chan struct{}   // closed when EXITED is recorded
	Erased  chan struct{}   // closed when the runtime's state of it is deleted
	OOM     atomic.Bool     // a foreign shim reported an OOM kill
	// Creating is its Create call, if that was given up.
	Creating atomic.Pointer[PendingCall]
	listed   encodedItem
	CPU      usage.CPURate
}

// NewContainer returns the container of a record, in s.
func NewContainer(o *store.Object[ContainerSpec, ContainerStatus], s *Sandbox) *Container {
	return &Container{Object: o, Sandbox: s, Op: keyedlock.NewMutex(), Exited: make(chan struct{}), Erased: make(chan struct{})}
}

// Config is the configuration that the container was created with.
func (c *Container) Config() *runtimeapi.ContainerConfig { return c.Spec().Config.Msg }

// Record records an observation, even on a full disk: a daemon that fails there could not free
// space.
func (c *Container) Record(ctx context.Context, change func(*ContainerStatus)) {
	if err := c.Force(change); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Error("Failed to record container state")
	}
}

// State is the CRI's state.
func (c *Container) State() runtimeapi.ContainerState {
	switch c.Status().Phase {
	case PhaseCreated:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case PhaseRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case PhaseExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	}
	return runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// CRIStatus is the status in ContainerStatus's response.
func (c *Container) CRIStatus() *runtimeapi.ContainerStatus {
	spec, st, config := c.Spec(), c.Status(), c.Config()
	return &runtimeapi.ContainerStatus{
		Id:          c.ID(),
		Metadata:    config.GetMetadata(),
		State:       c.State(),
		CreatedAt:   spec.CreatedAt,
		StartedAt:   st.StartedAt,
		FinishedAt:  st.FinishedAt,
		ExitCode:    st.ExitCode,
		Image:       imageSpec(spec, config),
		ImageRef:    spec.ImageRef,
		ImageId:     spec.ImageID,
		Reason:      st.Reason,
		Message:     st.Message,
		Labels:      config.GetLabels(),
		Annotations: config.GetAnnotations(),
		Mounts:      config.GetMounts(),
		LogPath:     spec.LogPath,
		Resources:   st.Resources.Msg,
		User:        containerUser(st),
		StopSignal:  ocispec.CRISignal(spec.StopSignal),
	}
}

// itemIn is the item of a list in that state.
func (c *Container) itemIn(state runtimeapi.ContainerState) *runtimeapi.Container {
	spec, config := c.Spec(), c.Config()
	return &runtimeapi.Container{
		Id: c.ID(), PodSandboxId: spec.Sandbox, Metadata: config.GetMetadata(),
		Image: imageSpec(spec, config), ImageRef: spec.ImageRef, ImageId: spec.ImageID,
		State: state, CreatedAt: spec.CreatedAt, Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
	}
}

// Matches reports whether a filter selects c.
func (c *Container) Matches(f *runtimeapi.ContainerFilter) bool { return c.matchesIn(c.State(), f) }

// matchesIn is Matches with a state read earlier: an item that is listed by its state must have
// that state.
func (c *Container) matchesIn(state runtimeapi.ContainerState, f *runtimeapi.ContainerFilter) bool {
	return strings.HasPrefix(c.ID(), f.GetId()) &&
		strings.HasPrefix(c.Spec().Sandbox, f.GetPodSandboxId()) &&
		(f.GetState() == nil || f.GetState().GetState() == state) &&
		selects(f.GetLabelSelector(), c.Config().GetLabels())
}

// Item is the item of a list, nil if f does not select c.
func (c *Container) Item(f *runtimeapi.ContainerFilter) *runtimeapi.Container {
	if state := c.State(); c.matchesIn(state, f) {
		return c.itemIn(state)
	}
	return nil
}

// Encoded is Item in its encoded form.
func (c *Container) Encoded(f *runtimeapi.ContainerFilter) ([]byte, error) {
	state := c.State()
	if !c.matchesIn(state, f) {
		return nil, nil
	}
	return c.listed.encoded(c.ID(), int32(state), func() proto.Message { return c.itemIn(state) })
}

// MustAsk reports whether only the process that runs c can measure it, because c has no cgroup on
// this host.
func (c *Container) MustAsk() bool {
	return c.Sandbox.MustAsk() && c.Status().Phase == PhaseRunning
}

// NotRunning is the error of calls that require a RUNNING container.
func (c *Container) NotRunning() error {
	return fmt.Errorf("container %s is not running: %w", c.ID(), errdefs.ErrFailedPrecondition)
}

// Ended is the error of calls that change an exited container.
func (c *Container) Ended() error {
	return fmt.Errorf("container %s has exited, so its resources cannot be changed: %w", c.ID(), ErrEnded)
}

// SharesProcesses reports whether processes of c may outlive its first, until the runtime deletes
// c.
func (c *Container) SharesProcesses() bool {
	return c.Config().GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER
}

// AwaitErased waits at most KillGrace for the clean-up after the exit; the removal retries it.
func (c *Container) AwaitErased(ctx context.Context) error {
	_, err := await(ctx, c.Erased, KillGrace)
	return err
}

// StopSignal is the signal chosen when the container was created.
func (c *Container) StopSignal() syscall.Signal {
	s, _ := ocispec.StopSignal(c.Config(), c.Spec().StopSignal)
	return s
}

// AwaitEnd waits at most d until c is EXITED.
func (c *Container) AwaitEnd(ctx context.Context, d time.Duration) (bool, error) {
	return await(ctx, c.Exited, d)
}

// await reports whether done is closed within patience.
func await(ctx context.Context, done <-chan struct{}, patience time.Duration) (bool, error) {
	select {
	case <-done:
		return true, nil
	case <-time.After(patience):
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// AwaitCreated waits for a Create call of c that was given up.
func (c *Container) AwaitCreated(ctx context.Context) error {
	return c.Creating.Load().Await(ctx)
}

func imageSpec(spec *ContainerSpec, c *runtimeapi.ContainerConfig) *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{
		// The name that lists and other clients use; the pod's own name is in UserSpecifiedImage.
		Image: cmp.Or(spec.ImageTag, spec.ImageName), UserSpecifiedImage: c.GetImage().GetUserSpecifiedImage(),
		Annotations: c.GetImage().GetAnnotations(), RuntimeHandler: c.GetImage().GetRuntimeHandler(),
		ImageRef: c.GetImage().GetImageRef(),
	}
}

func containerUser(st *ContainerStatus) *runtimeapi.ContainerUser {
	u := &runtimeapi.LinuxContainerUser{Uid: int64(st.User.UID), Gid: int64(st.User.GID)}
	for _, g := range st.User.AdditionalGids {
		u.SupplementalGroups = append(u.SupplementalGroups, int64(g))
	}
	return &runtimeapi.ContainerUser{Linux: u}
}

// PendingCall is a call that was given up and may still run.
type PendingCall struct {
	Ended <-chan struct{} // closed when the call ends
}

// Await waits at most CreatePatience for the end of the call; a nil call has ended.
func (p *PendingCall) Await(ctx context.Context) error {
	if p == nil {
		return nil
	}
	ended, err := await(ctx, p.Ended, CreatePatience)
	if err == nil && !ended {
		err = fmt.Errorf("the create call of the shim has not returned yet; try again: %w", errdefs.ErrUnavailable)
	}
	return err
}

// CreatePatience is how long roll-back of a task waits for its Create call.
const CreatePatience = 10 * time.Second

// ErrEnded is the class of errors of calls that change an exited container.
var ErrEnded = fmt.Errorf("%w", errdefs.ErrFailedPrecondition)

// KillGrace is how long a killed process may take until its exit is reported.
const KillGrace = 10 * time.Second

// ExitReason is the CRI's reason of an exited container.
func ExitReason(code int32, oom, unknown bool) string {
	switch {
	case oom:
		return "OOMKilled"
	case unknown:
		return "Unknown"
	case code == 0:
		return "Completed"
	}
	return "Error"
}

// RecordOOM records that a shim reported an OOM kill in a container.
func (o *Index) RecordOOM(task string) {
	c, err := o.Container(task)
	if err != nil || c.OOM.Swap(true) {
		return
	}
	// The event may arrive after the exit, by its own connection. The exit is recorded under the
	// same lock, so that either the exit has OOM set, or this change finds the exit.
	c.Record(context.Background(), func(st *ContainerStatus) {
		if st.Phase == PhaseExited && st.ExitCode != 0 && st.Reason == ExitReason(st.ExitCode, false, false) {
			st.Reason = ExitReason(st.ExitCode, true, false)
		}
	})
}
