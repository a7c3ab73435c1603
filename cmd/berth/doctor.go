package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/doctor"
)

// doctorCommand makes "berth doctor".
func doctorCommand() *cobra.Command {
	form := ""
	var places config.Options
	root := ""
	all := false
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node for problems that keep pods from running",
		Long: `Check this node: the configuration, runtimes, privileges, the kernel, cgroup drivers,
free space, CNI, registries that hosts.toml names, NRI, sysctls, ports, the kubelet,
kubeadm, crictl, and other CRI daemons. Each finding that is not ok says what to do next.
Nothing is changed, and the daemon does not need to run.

The exit status is 0 if no check fails (there may be warnings), and 3 if one does.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			n := doctor.Node{Root: root}
			places.TolerateDropIns = true
			if n.Config, n.ConfigError = config.Load(places); n.ConfigError != nil {
				n.Config = nil
			}
			found := doctor.Examine(n)
			if err := printFindings(c.OutOrStdout(), form, found, all); err != nil {
				return err
			}
			if doctor.Worst(found) == doctor.Fail {
				return degraded("some checks failed; see the findings above")
			}
			return nil
		},
	}
	placeFlags(c, &places)
	outputFlag(c, &form)
	c.Flags().BoolVar(&all, "all", false, "also show findings that are ok")
	c.Flags().StringVar(&root, "root", "", "check the node whose root `directory` is mounted here, as from a container; --config is its configuration")
	return c
}

func printFindings(w io.Writer, form string, found []doctor.Finding, all bool) error {
	return encode(w, form, map[string]any{"findings": found, "worst": doctor.Worst(found)}, func(w io.Writer) error {
		return listFindings(w, found, all || form == "wide")
	})
}

func listFindings(w io.Writer, found []doctor.Finding, all bool) error {
	counts := map[doctor.Level]int{}
	for _, f := range found {
		counts[f.Level]++
		if f.Level == doctor.OK && !all {
			continue
		}
		fmt.Fprintf(w, "%-4s  %s: %s\n", f.Level, f.Check, f.Text)
		if f.Next != "" {
			fmt.Fprintf(w, "      → %s\n", f.Next)
		}
	}
	_, err := fmt.Fprintf(w, "%d ok, %d warnings, %d failures\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail])
	return err
}
