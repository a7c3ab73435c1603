// Package cluster decides about the handlers of a whole cluster by what its API
// server has:
//
//	handlers := cluster.Handlers(&cluster.State{Nodes: nodes}) // what its nodes report
//	effect := cluster.Compare(before, after)                   // what an apply did to a class
//
// It is pure: objects go in, values come out. Who asks the API server is
// cmd/kubectl-berth, and what RuntimeClasses mean is in pkg/runtimeclass.
package cluster
