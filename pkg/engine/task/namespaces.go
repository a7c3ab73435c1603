package task

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// NeedNamespaces refuses what needs a namespace of s that somebody has unmounted,
// as `umount -R /run/netns` does. It cannot be had again, so s is NOTREADY from
// then on: the kubelet then runs a new sandbox for the pod. It must not be called
// while s is being stopped.
func NeedNamespaces(ctx context.Context, s *pod.Sandbox, events *events.Announcer) error {
	lost := s.Status().Namespaces.Lost()
	if lost == "" {
		return nil
	}
	ready := s.Status().Phase == pod.PhaseReady
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
	if ready {
		events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return fmt.Errorf("namespace %s of sandbox %s was unmounted by something else on the node; run a new sandbox for the pod: %w",
		lost, s.ID(), errdefs.ErrFailedPrecondition)
}
