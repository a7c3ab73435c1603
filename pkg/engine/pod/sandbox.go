package pod

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/usage"
	"github.com/berth-cri/berth/pkg/probe"
)

// Sandbox is a sandbox that is visible to callers.
type Sandbox struct {
	*store.Object[SandboxSpec, SandboxStatus]
	probe.Kernel
	Runner Runner
	Op     keyedlock.Mutex // held by calls that change it as a whole: stop, remove
	Making *gate           // entered by calls that create containers in it
	CPU    usage.CPURate
	Lost   sync.Once // reports once that its binary was replaced
	// Creating is the Create call of its process, if that was given up.
	Creating atomic.Pointer[PendingCall]
	// EndAsked is the time of the first request to its shim to stop the tasks in it.
	EndAsked atomic.Pointer[time.Time]
	// Writing aborts the checkpoint that is being written, else nil.
	Writing atomic.Pointer[context.CancelFunc]
	// Ending counts the calls that stop or remove it, which abort a checkpoint.
	Ending atomic.Int32
	// Killed is set when its processes are killed because its shim is dead.
	Killed atomic.Bool
	listed encodedItem
}

// NewSandbox returns the sandbox of a record. b returns its Runner.
func NewSandbox(o *store.Object[SandboxSpec, SandboxStatus], b Binder) *Sandbox {
	s := &Sandbox{Object: o, Kernel: o.Spec().Plan.Kernel.Facts(), Op: keyedlock.NewMutex(), Making: newGate()}
	s.Runner = b.Bind(s)
	return s
}

// Config is the configuration that the sandbox was run with.
func (s *Sandbox) Config() *runtimeapi.PodSandboxConfig { return s.Spec().Config.Msg }

// MustAsk reports whether only the process that runs the sandbox can measure it.
func (s *Sandbox) MustAsk() bool { return !s.HostProcesses }

// Open returns an error if no containers may be created and started in s.
func (s *Sandbox) Open() error {
	if s.State() != runtimeapi.PodSandboxState_SANDBOX_READY {
		return s.NotReady()
	}
	return nil
}

// NotReady is the error of calls that require a ready sandbox.
func (s *Sandbox) NotReady() error {
	return fmt.Errorf("sandbox %s is not ready: run a new sandbox for the pod: %w", s.ID(), errdefs.ErrFailedPrecondition)
}

// Record records a step of a stop or removal. It succeeds even on a full disk, because removals
// free space. Each step is idempotent, so a restarted daemon can repeat unrecorded ones.
func (s *Sandbox) Record(ctx context.Context, change func(*SandboxStatus)) {
	if err := s.Force(change); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Error("Failed to record sandbox state")
	}
}

// State is the CRI's state.
func (s *Sandbox) State() runtimeapi.PodSandboxState {
	if st := s.Status(); st.Phase == PhaseReady && !st.Stopping {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// CRIStatus is the status in PodSandboxStatus's response.
func (s *Sandbox) CRIStatus() *runtimeapi.PodSandboxStatus {
	c := s.Config()
	status := &runtimeapi.PodSandboxStatus{
		Id:             s.ID(),
		Metadata:       c.GetMetadata(),
		State:          s.State(),
		CreatedAt:      s.Spec().CreatedAt,
		Labels:         c.GetLabels(),
		Annotations:    c.GetAnnotations(),
		RuntimeHandler: s.Spec().Handler,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			// As requested: the kubelet recreates a pod if its sandbox's options differ.
			Options: cmp.Or(c.GetLinux().GetSecurityContext().GetNamespaceOptions(), &runtimeapi.NamespaceOption{}),
		}},
	}
	if s.Spec().Plan.Net {
		status.Network = &runtimeapi.PodSandboxNetworkStatus{}
		if n := s.Status().Network; n != nil && len(n.IPs) > 0 {
			status.Network.Ip = n.IPs[0]
			for _, ip := range n.IPs[1:] {
				status.Network.AdditionalIps = append(status.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
			}
		}
	}
	return status
}

// itemIn is the item of a list in that state.
func (s *Sandbox) itemIn(state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: s.ID(), Metadata: s.Config().GetMetadata(), State: state, CreatedAt: s.Spec().CreatedAt,
		Labels: s.Config().GetLabels(), Annotations: s.Config().GetAnnotations(), RuntimeHandler: s.Spec().Handler,
	}
}

// Matches reports whether a filter selects s.
func (s *Sandbox) Matches(f *runtimeapi.PodSandboxFilter) bool { return s.matchesIn(s.State(), f) }

// matchesIn is like Container.matchesIn.
func (s *Sandbox) matchesIn(state runtimeapi.PodSandboxState, f *runtimeapi.PodSandboxFilter) bool {
	return strings.HasPrefix(s.ID(), f.GetId()) &&
		(f.GetState() == nil || f.GetState().GetState() == state) &&
		selects(f.GetLabelSelector(), s.Config().GetLabels())
}

// Item is the item of a list, nil if f does not select s.
func (s *Sandbox) Item(f *runtimeapi.PodSandboxFilter) *runtimeapi.PodSandbox {
	if state := s.State(); s.matchesIn(state, f) {
		return s.itemIn(state)
	}
	return nil
}

// Encoded is Item in its encoded form.
func (s *Sandbox) Encoded(f *runtimeapi.PodSandboxFilter) ([]byte, error) {
	state := s.State()
	if !s.matchesIn(state, f) {
		return nil, nil
	}
	return s.listed.encoded(s.ID(), int32(state), func() proto.Message { return s.itemIn(state) })
}
