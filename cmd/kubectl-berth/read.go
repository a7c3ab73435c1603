package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-cri/berth/pkg/cluster"
)

// state reads nodes and classes. All that is not allowed is told at once.
func (s *server) state(ctx context.Context) (*cluster.State, error) {
	nodes, err := s.nodes(ctx)
	classes, more := s.runtimeClasses(ctx)
	if err := errors.Join(err, more); err != nil {
		return nil, err
	}
	return &cluster.State{Nodes: nodes, Classes: classes}, nil
}

// stateWithPods reads also what is pending in a namespace, or in all of them if it is
// empty, and why.
func (s *server) stateWithPods(ctx context.Context, namespace string) (*cluster.State, error) {
	state, err := s.state(ctx)
	if state == nil {
		state = &cluster.State{}
	}
	var more, last error
	state.Pods, more = list[corev1.Pod](ctx, s, "pods", s.core.Pods(namespace).List,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)).String()})
	state.Events, last = list[corev1.Event](ctx, s, "events", s.core.Events(namespace).List,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", cluster.SandboxFailed).String()})
	if err := errors.Join(err, more, last); err != nil {
		return nil, err
	}
	return state, nil
}
