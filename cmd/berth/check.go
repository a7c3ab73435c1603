package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// newCheckCommand makes "berth check".
func newCheckCommand() *cobra.Command {
	var options config.Options
	form := ""
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Validate the configuration and print every error in it",
		Long: `Validate the configuration as "berth serve" would read it, and the files that it
names on this machine. Nothing is changed, and the daemon is not asked. The exit
status is 0 if the configuration is valid, and 2 if not, with every error on stderr
as file:line:column.`,
		Args: noFileArgument,
		Run: func(cmd *cobra.Command, _ []string) {
			if code := check(options, form, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != 0 {
				os.Exit(code)
			}
		},
	}
	placeFlags(cmd, &options)
	outputFlag(cmd, &form)
	return cmd
}

// noFileArgument helps those who give the file as it is given to most checkers.
func noFileArgument(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown argument %q; use a flag for the configuration file: %s -c %s", args[0], cmd.CommandPath(), args[0])
}

// placeFlags are the flags of "berth serve" that say where a configuration is.
func placeFlags(cmd *cobra.Command, o *config.Options) {
	flags := cmd.Flags()
	flags.VarP((*pathFlag)(&o.File), "config", "c", "main configuration file (default "+config.DefaultFile+", which may be absent)")
	flags.Var((*pathFlag)(&o.DropInDir), "drop-in-dir", "directory of drop-ins (default conf.d beside the main file)")
	flags.Var((*pathFlag)(&o.VendorDir), "vendor-dir", "directory of drop-ins of packages (default "+config.DefaultVendorDir+")")
	flags.Var((*pathsFlag)(&o.SearchPath), "search-path", "directories to discover runtimes in if none is configured")
}

// pathFlag is a path that begins at the working directory if it is relative: what reads
// files goes by whole paths only.
type pathFlag string

func (p *pathFlag) Set(value string) error {
	if value != "" {
		whole, err := filepath.Abs(value)
		if err != nil {
			return err
		}
		value = whole
	}
	*p = pathFlag(value)
	return nil
}

func (p *pathFlag) String() string { return string(*p) }

func (*pathFlag) Type() string { return "string" }

// checked is what "berth check" found.
type checked struct {
	Sources  []string         `json:"sources"`
	Handlers []checkedHandler `json:"handlers"`
	Notes    []string         `json:"notes"`
	Warnings []string         `json:"warnings"`
	Problems []string         `json:"problems"`
}

type checkedHandler struct {
	Name     string       `json:"name"`
	Type     handler.Type `json:"type"`
	Path     string       `json:"path"`
	Endpoint string       `json:"endpoint,omitempty"`
	Origin   string       `json:"origin"`
	Default  bool         `json:"default"`
}

// check returns the exit status. Mistakes are on stderr in every form.
func check(o config.Options, form string, stdout, stderr io.Writer) int {
	cfg, err := config.Load(o)
	if err == nil {
		err = cfg.Helpers()
	}
	var problems config.Problems
	var warnings []string
	switch {
	case err == nil:
		// Imported handlers, and files that others can change, cannot stop a daemon, and
		// are not what an operator wants to find at a pod.
		problems, warnings = cfg.Changeable()
		problems = append(slices.Clip(cfg.Problems), problems...)
	case !errors.As(err, &problems):
		fmt.Fprintln(stderr, err)
		return exitFailure
	default:
		cfg = &config.Config{}
	}
	if err := encode(stdout, form, foundIn(cfg, warnings, problems), func(w io.Writer) error {
		summarize(cfg, w)
		printNotes(cfg.ImportNotes, w)
		for _, text := range warnings {
			fmt.Fprintln(w, "warning:", text)
		}
		return nil
	}); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailure
	}
	if len(problems) > 0 {
		fmt.Fprintln(stderr, problems)
		return exitConfig
	}
	return 0
}

func foundIn(cfg *config.Config, warnings []string, problems config.Problems) checked {
	c := checked{Sources: cfg.Sources, Handlers: []checkedHandler{}, Notes: []string{}, Warnings: warnings, Problems: []string{}}
	if c.Warnings == nil {
		c.Warnings = []string{}
	}
	if c.Sources == nil {
		c.Sources = []string{}
	}
	for _, d := range cfg.Runtimes {
		c.Handlers = append(c.Handlers, checkedHandler{d.Name, d.Type, d.Path, d.Endpoint, d.Origin, d.Name == cfg.DefaultRuntime})
	}
	for _, n := range cfg.ImportNotes {
		c.Notes = append(c.Notes, n.String())
	}
	for _, p := range problems {
		c.Problems = append(c.Problems, p.Error())
	}
	return c
}

// printNotes says what imported files say that berth does not follow.
func printNotes(notes []config.ImportNote, w io.Writer) {
	for _, n := range notes {
		fmt.Fprintln(w, "note:", n)
	}
}

func summarize(cfg *config.Config, w io.Writer) {
	for _, file := range cfg.Sources {
		fmt.Fprintf(w, "read %s\n", file)
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
		fmt.Fprintf(w, "%-*s  %-4s  %s  %s%s\n", width, d.Name, d.Type, cmp.Or(d.Path, d.Endpoint), d.Origin, mark)
	}
}

// pathsFlag is a list of such paths, with commas between them or by several flags.
type pathsFlag []string

// String implements pflag.Value.
func (p *pathsFlag) String() string { return strings.Join(*p, ",") }

// Set implements pflag.Value.
func (p *pathsFlag) Set(list string) error {
	for path := range strings.SplitSeq(list, ",") {
		var one pathFlag
		if err := one.Set(path); err != nil {
			return err
		}
		*p = append(*p, string(one))
	}
	return nil
}

// Type implements pflag.Value: what the help calls it.
func (*pathsFlag) Type() string { return "paths" }
