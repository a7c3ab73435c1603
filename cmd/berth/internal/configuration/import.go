package configuration

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/config"
)

func newConfigImportCommand() *cobra.Command {
	var options config.Options
	form := ""
	cmd := &cobra.Command{
		Use:   "import FILE|DIRECTORY...",
		Short: "Translate files of CRI-O and containerd",
		Long: `Translate the handlers in CRI-O or containerd files, or in directories of them, into
a berth drop-in on stdout. Every key without an equivalent is reported on stderr,
with the reason and what to do. To serve such files directly and follow their changes,
list them in [import] instead.

The exit status is 2 if a file cannot be read or has a mistake, and 3 if this machine
lacks what a handler needs, such as its binary. The drop-in has all handlers then.`,
		Example: "  berth config import /etc/crio/crio.conf.d > /etc/berth/conf.d/50-crio.toml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFiles(args, options, form, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.SearchFlag(cmd, &options, "directories to search for runtimes that are named without a path")
	output.Flag(cmd, &form, output.Forms...)
	return cmd
}

func importFiles(paths []string, o config.Options, form string, stdout, stderr io.Writer) error {
	for i, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return commandline.Wrong(err)
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
	found := foundIn(&config.Config{ImportNotes: t.Notes}, nil, t.Problems, nil, "")
	answer := map[string]any{"dropIn": string(t.DropIn), "notes": found.Notes, "problems": found.Problems}
	if err := output.Encode(stdout, form, answer, func(w io.Writer) error {
		_, err := w.Write(t.DropIn)
		return err
	}); err != nil {
		return err
	}
	if err := output.Lines(noteLines(t.Notes))(stderr); err != nil {
		return err
	}
	switch mistakes, lacks := t.Problems.Split(); {
	case len(lacks) > 0 && len(mistakes) == 0:
		return commandline.Found("some handlers cannot be served on this machine:\n%w", lacks)
	case len(t.Problems) > 0:
		return commandline.Wrong(fmt.Errorf("some handlers cannot be served:\n%w", t.Problems))
	}
	return nil
}
