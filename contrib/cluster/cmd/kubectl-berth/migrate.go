package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
)

type migrateCommand struct {
	*program
	rename []string
}

func (p *migrateCommand) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate FILE",
		Short: "Rewrite RuntimeClasses of old versions to node.k8s.io/v1",
		Long: `Rewrite RuntimeClasses of v1beta1 and v1alpha1 to node.k8s.io/v1, and print the file.
YAML keeps its comments and order. In v1, the name of a handler cannot be empty or have dots.
Replace such names with --handler; otherwise nothing is printed.`,
		Example: "  kubectl berth migrate old.yaml >new.yaml\n  kubectl berth migrate old.yaml --handler kata.v2=kata-v2 --handler =runc",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return p.migrate(args[0]) },
	}
	c.Flags().StringArrayVar(&p.rename, "handler", nil, "rename a handler: `OLD=NEW`; OLD may be empty; may be repeated")
	return c
}

func (p *migrateCommand) migrate(file string) error {
	names := map[string]string{}
	for _, text := range p.rename {
		from, to, ok := strings.Cut(text, "=")
		if !ok {
			return commandline.Wrong(fmt.Errorf("--handler %q: write it as OLD=NEW", text))
		}
		if _, err := runtimeclass.ParseNames(to); err != nil {
			return commandline.Wrong(fmt.Errorf("--handler %q: %w", text, err))
		}
		names[from] = to
	}
	name, text, err := p.text(file)
	if err != nil {
		return commandline.Wrong(err)
	}
	m, err := runtimeclass.Migrate(name, text, names)
	if err != nil {
		return commandline.Wrong(err)
	}
	for _, change := range m.Changes {
		p.note("%s", change)
	}
	if err := printFindings(p.ErrOut, m.Findings); err != nil {
		return err
	}
	if n := len(m.Findings); n > 0 {
		return commandline.Found("nothing was printed: the API server would reject the result for %s", output.Count(n, "reason", "reasons"))
	}
	_, err = p.Out.Write(m.Text)
	return err
}
