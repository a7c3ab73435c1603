package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
)

// each reads one thing after the other. What is forbidden is told of all at once; after
// any other failure nothing more is asked.
func each(reads ...func() error) error {
	var forbidden []error
	for _, read := range reads {
		switch err := read(); {
		case apierrors.IsForbidden(err):
			forbidden = append(forbidden, err)
		case err != nil:
			return err
		}
	}
	if len(forbidden) > 1 {
		return fmt.Errorf("rights are missing:\n%w", errors.Join(forbidden...))
	}
	return errors.Join(forbidden...)
}

// into is a read that keeps what it gets.
func into[T any](to *T, read func() (T, error)) func() error {
	return func() (err error) {
		*to, err = read()
		return err
	}
}

// reads are those of nodes and classes.
func (s *server) reads(ctx context.Context, state *cluster.State) []func() error {
	return []func() error{
		into(&state.Nodes, func() ([]corev1.Node, error) { return s.nodes(ctx) }),
		into(&state.Classes, func() ([]nodev1.RuntimeClass, error) { return s.runtimeClasses(ctx) }),
	}
}

// state reads nodes and classes.
func (s *server) state(ctx context.Context) (*cluster.State, error) {
	state := &cluster.State{}
	if err := each(s.reads(ctx, state)...); err != nil {
		return nil, err
	}
	return state, nil
}

// stateWithPods reads also the pods of a namespace that have not ended, or of all of them if
// it is empty, and why they are pending.
func (s *server) stateWithPods(ctx context.Context, namespace string) (*cluster.State, error) {
	state := &cluster.State{}
	if err := each(append(s.reads(ctx, state),
		into(&state.Pods, func() ([]corev1.Pod, error) {
			return list[corev1.Pod](ctx, s, "pods", s.core.Pods(namespace).List, metav1.ListOptions{FieldSelector: fields.AndSelectors(
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()})
		}),
		into(&state.Events, func() ([]corev1.Event, error) {
			return list[corev1.Event](ctx, s, "events", s.core.Events(namespace).List,
				metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", cluster.SandboxFailed).String()})
		}))...); err != nil {
		return nil, err
	}
	return state, nil
}
