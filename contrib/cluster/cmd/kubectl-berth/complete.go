package main

import (
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
)

// completeFlags adds what can be said of kubectl's flags.
func (p *program) completeFlags(root *cobra.Command) {
	kubeconfig := func(names func() []string) cobra.CompletionFunc {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return names(), cobra.ShellCompDirectiveNoFileComp
		}
	}
	completes(root, "context", kubeconfig(func() []string {
		config, err := p.config.ToRawKubeConfigLoader().RawConfig()
		return keys(config.Contexts, err)
	}))
	completes(root, "cluster", kubeconfig(func() []string {
		config, err := p.config.ToRawKubeConfigLoader().RawConfig()
		return keys(config.Clusters, err)
	}))
	completes(root, "user", kubeconfig(func() []string {
		config, err := p.config.ToRawKubeConfigLoader().RawConfig()
		return keys(config.AuthInfos, err)
	}))
	completes(root, "namespace", p.completeNamespaces)
}

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

func keys[V any](m map[string]V, err error) []string {
	if err != nil {
		return nil
	}
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
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
