package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// loader reads the configuration of a running daemon: from the same places and
// with the same flags as at its start.
type loader struct {
	options config.Options
	// last is what was loaded last without a mistake.
	last   atomic.Pointer[config.Config]
	faults atomic.Pointer[[]string] // of the last InForce
}

// newLoader goes on from the configuration that the daemon started with.
func newLoader(o config.Options, start *config.Config) *loader {
	l := &loader{options: o}
	l.last.Store(start)
	l.faults.Store(new([]string))
	return l
}

// Check implements daemon.Loader. Options have the directory of drop-ins as the
// management API does.
func (l *loader) Check(_ context.Context, file string, text []byte) error {
	_, err := l.read(map[string][]byte{file: text})
	return err
}

// Read implements daemon.Loader. What is only looked at is not what runs: the next
// Load goes on from what the last one returned.
func (l *loader) Read(context.Context) (*config.Config, error) { return l.read(nil) }

func (l *loader) read(overlay map[string][]byte) (*config.Config, error) {
	o := l.options
	o.Running, o.Overlay = l.last.Load(), overlay
	return config.Load(o)
}

func (l *loader) Load(ctx context.Context) (*config.Config, error) {
	cfg, err := l.read(nil)
	if err == nil {
		sayNew(ctx, l.last.Swap(cfg), cfg)
	}
	return cfg, err
}

// sayNew logs what is new of imported files: their mistakes, which are no error,
// and what of them means nothing to berth.
func sayNew(ctx context.Context, before, now *config.Config) {
	for _, p := range now.Problems {
		if !slices.Contains(before.Problems, p) {
			log.G(ctx).WithField("problem", p.Error()).Warn("Skipping invalid part of the configuration")
		}
	}
	for _, n := range now.ImportNotes {
		if !slices.Contains(before.ImportNotes, n) {
			log.G(ctx).WithField("note", n.String()).Info("Ignoring unsupported setting in imported file")
		}
	}
}

func (l *loader) InForce(ctx context.Context, cfg *config.Config) {
	var faults []string
	if err := cfg.KeepAccepted(l.options); err != nil {
		log.G(ctx).WithError(err).WithField("file", l.options.AcceptedFile()).
			Error("Failed to keep the accepted configuration; a start needs files without mistakes")
		faults = []string{"cannot keep the accepted configuration, so a start with a mistake in the files fails: " + err.Error() + "; correct that, then run \"berth reload --wait\""}
	}
	l.faults.Store(&faults)
}

func (l *loader) Faults() []string { return *l.faults.Load() }

func (l *loader) Paths() []string { return l.last.Load().Watched() }

// applyLog puts in force what a reloaded configuration says of the log.
func applyLog(ctx context.Context, cfg *config.Config) {
	if err := setLog(cfg.Log); err != nil {
		log.G(ctx).WithError(err).Error("Failed to apply log settings; keeping the current ones")
	}
}

// reloadCommand makes "berth reload".
func reloadCommand() *cobra.Command {
	r := &remote{}
	wait := false
	c := &cobra.Command{
		Use:   "reload",
		Short: "Apply the configuration files, either all of them or none",
		Long: `Make the daemon read its configuration again. It reads and checks all files, probes
new runtimes, and then applies either all of it or nothing. Pods are not affected.

With --wait, the exit status is 0 if the configuration is applied, 2 if it is rejected,
with every error on stderr as file:line:column, and 3 if it is applied but a handler
cannot run pods or a part of an imported file is left out. The result is also shown if
the daemon has read the files before. Without --wait, the command returns at once.`,
		Example: "  berth reload --wait",
		Args:    cobra.NoArgs,
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			if !wait {
				resp, err := daemon.Reload(ctx, &adminv1.ReloadRequest{NoWait: true})
				if err != nil {
					return err
				}
				return showRequest(c.OutOrStdout(), r.output, resp)
			}
			return reload(ctx, c, r, daemon)
		}),
	}
	r.flags(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait for the result")
	c.Flags().DurationVar(&r.timeout, "timeout", 2*time.Minute, "how long to wait")
	return c
}

func reload(ctx context.Context, c *cobra.Command, r *remote, daemon *client.Client) error {
	p := newProgress(c.ErrOrStderr())
	if p.width > 0 {
		p.step("reading, checking and probing …")
	}
	resp, err := daemon.Reload(ctx, &adminv1.ReloadRequest{})
	p.end()
	if err != nil {
		return err
	}
	if err := r.print(c.OutOrStdout(), resp, func(w io.Writer) error { return showReload(w, resp) }); err != nil {
		return err
	}
	for _, problem := range resp.GetProblems() {
		fmt.Fprintln(c.ErrOrStderr(), client.Line(problem))
	}
	return reloadEnd(resp)
}

// reloadEnd is how a reload ends that was waited for: it goes by how things are now,
// not by what the reload changed. Pure.
func reloadEnd(resp *adminv1.ReloadResponse) error {
	if !resp.GetAccepted() {
		return &codedError{exitConfig, fmt.Errorf("the configuration was rejected, generation %d stays in use; correct it and reload again", resp.GetGeneration())}
	}
	if names := resp.GetNotReady(); len(names) > 0 {
		return degraded("the configuration was applied, but these handlers cannot run pods: %s; see \"berth handlers\"", someOf(names, len(names)))
	}
	if n := len(resp.GetProblems()); n > 0 {
		return degraded("the configuration was applied without the parts that have problems: %s", output.Count(n, "problem", "problems"))
	}
	return nil
}

// requested is the output for a reload without --wait. The daemon's answer has more, which
// would look like an outcome.
type requested struct {
	Requested  bool   `json:"requested"`
	Generation uint64 `json:"generation,string"`
	Digest     string `json:"digest"`
}

func showRequest(w io.Writer, form string, resp *adminv1.ReloadResponse) error {
	return encode(w, form, requested{true, resp.GetGeneration(), resp.GetDigest()}, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "generation %d stays in use until the files are read; see \"berth status\"\n", resp.GetGeneration())
		return err
	})
}

func showReload(w io.Writer, resp *adminv1.ReloadResponse) error {
	if !resp.GetAccepted() {
		return nil
	}
	for _, line := range resp.GetChanges() {
		fmt.Fprintln(w, line)
	}
	for _, line := range resp.GetNeedsRestart() {
		fmt.Fprintf(w, "%s: applied after systemctl restart berth\n", line)
	}
	_, err := fmt.Fprintf(w, "generation %d applied (%s)\n", resp.GetGeneration(), resp.GetTook().AsDuration().Round(time.Millisecond))
	return err
}
