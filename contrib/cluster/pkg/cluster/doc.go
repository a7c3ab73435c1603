// Package cluster decides about the handlers of a whole cluster by what its API
// server has: nodes, RuntimeClasses, pods and events.
//
//	state := &cluster.State{Nodes: nodes, Classes: classes, Pods: pods, Events: events}
//	handlers := cluster.Handlers(state)              // what its nodes report
//	effect := cluster.Compare(before, after)         // what an apply did to a class
//	nodes := cluster.Nodes(state)                    // which node has which handlers, and which it lacks
//	findings := cluster.Audit(state, cluster.AuditOptions{})
//	fit := cluster.Fit(pod, state, cluster.FitOptions{})
//
// It is pure: objects go in, values come out. Who asks the API server is
// cmd/kubectl-berth, and what RuntimeClasses mean is in pkg/runtimeclass.
package cluster
