package main

import (
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
)

// completeNamespaces knows those of the cluster.
func (p *program) completeNamespaces(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return p.names(func(s *server) ([]string, error) {
		namespaces, err := list[corev1.Namespace](c.Context(), s, "namespaces", s.core.Namespaces().List, metav1.ListOptions{})
		var all []string
		for i := range namespaces {
			all = append(all, namespaces[i].Name)
		}
		return all, err
	}), cobra.ShellCompDirectiveNoFileComp
}

func completes(c *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic("kubectl-berth: " + err.Error()) // the flag is there, and has none yet
	}
}

// names are those that a server has; none if it cannot be asked, since a completion has
// nowhere to say so.
func (p *program) names(of func(*server) ([]string, error)) []string {
	s, err := p.connect()
	if err != nil {
		return nil
	}
	all, err := of(s)
	if err != nil {
		return nil
	}
	return all
}

// completeHandlers knows the handlers that nodes report.
func (p *program) completeHandlers(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return p.names(func(s *server) ([]string, error) {
		nodes, err := s.nodes(c.Context())
		var all []string
		for _, h := range cluster.Handlers(&cluster.State{Nodes: nodes}) {
			all = append(all, h.Name)
		}
		return all, err
	}), cobra.ShellCompDirectiveNoFileComp
}
