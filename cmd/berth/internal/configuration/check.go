package configuration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/daemon"
	"github.com/berth-cri/berth/pkg/handler"
)

// CheckCommand returns the command "berth check".
func CheckCommand() *cobra.Command {
	var options config.Options
	form := ""
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Validate the configuration, and what it needs on this machine",
		Long: `Validate the configuration that "berth serve" would read. Also probe the configured
runtimes, as the daemon does, but without self-check pods. Nothing is changed, and the
daemon is not asked. The last line is the verdict.

The exit status is 2 if a file has a mistake. The mistake is printed with
file:line:column. The exit status is 3 if all files are valid, but this machine lacks
something, such as a handler's binary. The daemon then serves all other handlers.
Without berth-shim and berth-pause, the daemon does not start.`,
		Example: "  berth check\n  berth check -c ./config.toml -o json",
		Args:    noFileArgument,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if code := check(cmd.Context(), options, form, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != 0 {
				return commandline.Shown(code)
			}
			return nil
		},
	}
	cli.PlaceFlags(cmd, &options)
	output.Flag(cmd, &form, output.Forms...)
	return cmd
}

// noFileArgument rejects arguments. Most other checkers accept a file as an argument, so the error
// suggests -c.
func noFileArgument(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown argument %q; use a flag for the configuration file: %s -c %s", args[0], cmd.CommandPath(), args[0])
}

// checked is the result of "berth check".
type checked struct {
	Sources  []string         `json:"sources"`
	Handlers []checkedHandler `json:"handlers"`
	Notes    []string         `json:"notes"`
	Warnings []string         `json:"warnings"`
	// Problems are mistakes in files. Lacks are problems of this machine, such as a missing binary.
	Problems []string `json:"problems"`
	Lacks    []string `json:"lacks"`
	Verdict  string   `json:"verdict"`
}

type checkedHandler struct {
	Name     string       `json:"name"`
	Type     handler.Type `json:"type"`
	Path     string       `json:"path"`
	Endpoint string       `json:"endpoint,omitempty"`
	Origin   string       `json:"origin"`
	Default  bool         `json:"default"`
}

// check returns the exit status. Mistakes go to stderr in every output format.
func check(ctx context.Context, o config.Options, form string, stdout, stderr io.Writer) int {
	cfg, err := config.Load(o)
	var mistakes, lacks config.Problems
	var warnings []string
	switch {
	case err == nil:
		// A daemon starts although imported handlers have mistakes, or other users can change
		// files. But these problems can make pods fail later, so check reports them.
		var refused config.Problems
		mistakes, lacks = cfg.Problems.Split()
		refused, warnings = cfg.Changeable()
		lacks = slices.Concat(lacks, refused, cfg.Helpers(), daemon.Lacking(ctx, cfg))
	case !errors.As(err, &mistakes):
		fmt.Fprintln(stderr, err)
		return commandline.Failed
	default:
		cfg = &config.Config{}
	}
	verdict, code := verdictOf(len(mistakes), len(lacks))
	lines := append(summary(cfg), noteLines(cfg.ImportNotes)...)
	for _, text := range warnings {
		lines = append(lines, "warning: "+text)
	}
	if code == 0 {
		lines = append(lines, verdict)
	}
	if err := output.Encode(stdout, form, foundIn(cfg, warnings, mistakes, lacks, verdict), output.Lines(lines)); err != nil {
		fmt.Fprintln(stderr, err)
		return commandline.Failed
	}
	if code != 0 {
		fmt.Fprintln(stderr, strings.Join(append(slices.Concat(mistakes, lacks).Lines(), verdict), "\n"))
	}
	return code
}

// verdictOf returns the verdict on a configuration and the exit status. Pure.
func verdictOf(mistakes, lacks int) (string, int) {
	ofFiles, ofMachine := output.Count(mistakes, "mistake", "mistakes"), output.Count(lacks, "problem", "problems")+" on this machine"
	switch {
	case mistakes > 0 && lacks > 0:
		return "config: " + ofFiles + ", " + ofMachine, commandline.Mistaken
	case mistakes > 0:
		return "config: " + ofFiles, commandline.Mistaken
	case lacks > 0:
		return "config: " + ofMachine, commandline.Degraded
	}
	return "config: ok", 0
}

func foundIn(cfg *config.Config, warnings []string, mistakes, lacks config.Problems, verdict string) checked {
	c := checked{
		Sources: append([]string{}, cfg.Sources...), Handlers: []checkedHandler{}, Notes: []string{}, Warnings: append([]string{}, warnings...),
		Problems: mistakes.Lines(), Lacks: lacks.Lines(), Verdict: verdict,
	}
	for _, d := range cfg.Runtimes {
		c.Handlers = append(c.Handlers, checkedHandler{d.Name, d.Type, d.Path, d.Endpoint, d.Origin, d.Name == cfg.DefaultRuntime})
	}
	for _, n := range cfg.ImportNotes {
		c.Notes = append(c.Notes, n.String())
	}
	return c
}

// noteLines returns lines about settings in imported files that berth ignores.
func noteLines(notes []config.ImportNote) (lines []string) {
	for _, n := range notes {
		lines = append(lines, "note: "+n.String())
	}
	return lines
}

func summary(cfg *config.Config) (lines []string) {
	for _, file := range cfg.Sources {
		lines = append(lines, "read "+file)
	}
	width := 0
	for _, d := range cfg.Runtimes {
		width = max(width, len(d.Name))
	}
	for _, d := range cfg.Runtimes {
		mark := ""
		if d.Name == cfg.DefaultRuntime {
			mark = " (default)"
		}
		lines = append(lines, fmt.Sprintf("%-*s  %-4s  %s  %s%s", width, d.Name, d.Type, cmp.Or(d.Path, d.Endpoint), d.Origin, mark))
	}
	return lines
}
