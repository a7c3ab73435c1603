package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/config"
)

func newConfigImportCommand() *cobra.Command {
	var options config.Options
	form, targets := "", importTargets{}
	cmd := &cobra.Command{
		Use:   "import FILE|DIRECTORY...",
		Short: "Translate files of CRI-O, containerd and containers' tools",
		Long: `Translate the handlers in CRI-O or containerd files, or in directories of them, into
a berth drop-in on stdout. Every key without an equivalent is reported on stderr,
with the reason and what to do. To serve such files directly and follow their changes,
list them in [import] instead.

containers' registries.conf becomes hosts.toml files, which --hosts-dir writes, and
policy.json becomes the policy of berth-verify-sigstore, which --verify-policy writes.
Without these flags they are printed, and nothing is changed. What cannot be translated
is a mistake: none of these files is then printed or written. A file that exists with
other content is never replaced.

The exit status is 2 if a file cannot be read or has a mistake, and 3 if this machine
lacks what a handler needs, such as its binary. The drop-in has all handlers then.`,
		Example: "  berth config import /etc/crio/crio.conf.d > /etc/berth/conf.d/50-crio.toml\n" +
			"  berth config import /etc/containers/registries.conf --hosts-dir /etc/berth/hosts.d",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFiles(args, options, targets, form, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	searchFlag(cmd, &options, "directories to search for runtimes that are named without a path")
	cmd.Flags().StringVar(&targets.hostsDir, "hosts-dir", "", "the directory to write <registry>/hosts.toml into, such as registry.hosts_dir")
	cmd.Flags().StringVar(&targets.verifyPolicy, "verify-policy", "", "the file to write the policy of berth-verify-sigstore to")
	outputFlag(cmd, &form)
	return cmd
}

func importFiles(paths []string, o config.Options, targets importTargets, form string, stdout, stderr io.Writer) error {
	for i, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return &codedError{exitConfig, err}
		}
		absolute, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		paths[i] = absolute
	}
	t, err := config.Translate(paths, o)
	if err != nil {
		return err
	}
	write, list := targets.split(t)
	missing, err := checkTargets(write)
	if err != nil {
		return &codedError{exitConfig, fmt.Errorf("nothing was written:\n%w", err)}
	}
	if form != "json" && form != "yaml" && len(t.DropIn) > 0 && len(list) > 0 {
		return &codedError{exitConfig, errors.New("these files are about handlers and about registries, which are not one drop-in; import them one after the other, or set --hosts-dir and --verify-policy")}
	}
	found := foundIn(&config.Config{ImportNotes: t.Notes}, nil, t.Problems, nil, "")
	answer := map[string]any{"dropIn": string(t.DropIn), "notes": found.Notes, "problems": found.Problems}
	if files := slices.Concat(write, list); len(files) > 0 {
		texts := map[string]string{}
		for _, f := range files {
			texts[f.path] = string(f.text)
		}
		answer["files"] = texts
	}
	if err := encode(stdout, form, answer, func(w io.Writer) error {
		if _, err := w.Write(t.DropIn); err != nil {
			return err
		}
		return listTargets(list, w)
	}); err != nil {
		return err
	}
	printNotes(t.Notes, stderr)
	if err := writeTargets(missing, stderr); err != nil {
		return err
	}
	switch mistakes, lacks := t.Problems.Split(); {
	case t.OfRegistries > 0:
		return &codedError{exitConfig, fmt.Errorf("files about registries cannot be translated, and none of them was:\n%w", t.Problems)}
	case len(lacks) > 0 && len(mistakes) == 0:
		return degraded("some handlers cannot be served on this machine:\n%w", lacks)
	case len(t.Problems) > 0:
		return &codedError{exitConfig, fmt.Errorf("some handlers cannot be served:\n%w", t.Problems)}
	}
	return nil
}
