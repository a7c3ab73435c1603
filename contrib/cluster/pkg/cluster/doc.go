// Package cluster decides about the handlers of a whole cluster by what its API
// server has: nodes, RuntimeClasses, pods and events.
//
//	state := &cluster.State{Nodes: nodes, Classes: classes, Pods: pods, Events: events}
//	handlers := cluster.Handlers(state)              // what its nodes report
//	findings := cluster.Audit(state)
//	fit := cluster.Fit(pod, state, cluster.FitOptions{})
//
// It is pure: objects go in, values come out. Who asks the API server is
// cmd/kubectl-berth, and what RuntimeClasses mean is in pkg/runtimeclass.
package cluster
