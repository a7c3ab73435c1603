package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// needNamespaces refuses what needs a namespace of s that somebody has unmounted,
// as `umount -R /run/netns` does. It cannot be had again, so s is NOTREADY from
// then on: the kubelet then runs a new sandbox for the pod. It must not be called
// while s is being stopped.
func (s *sandbox) needNamespaces(ctx context.Context, events *announcer) error {
	lost := s.Status().Namespaces.Lost()
	if lost == "" {
		return nil
	}
	ready := s.Status().Phase == phaseReady
	s.force(ctx, func(st *sandboxStatus) { st.Phase = phaseStopped })
	if ready {
		events.announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return fmt.Errorf("sandbox %s has lost its namespace %s, which something on the node unmounted: run a new sandbox for the pod: %w",
		s.ID(), lost, errdefs.ErrFailedPrecondition)
}
