package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config/dropin"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

const aboutSettings = `A setting is a key of [runtimes.<handler>], from docs/configuration.md, and its value. A
value that is not valid TOML is used as a string. Write a key of a table with a dot:
options.no_new_keyring.`

func addCommand() *cobra.Command {
	r := &cli.Remote{}
	var set []string
	var path, kind, configPath string
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a handler to the running daemon and to its files",
		Long: `Write a drop-in with the handler, reload, and show the handler's state. Exit
status 0 means that the handler was probed and applies to new pods. If the daemon would
reject the configuration, nothing is changed. The drop-in is 50-NAME.toml in the daemon's
conf.d.

` + aboutSettings + `

Exit status 3 means that the handler was added, but it or its candidate binary cannot run
pods.`,
		Example: `  berth handler add crun --path /usr/bin/crun --set options.no_new_keyring=true
  berth handler add kata --path /opt/kata/bin/containerd-shim-kata-v2 --set 'pod_annotations=["io.katacontainers.*"]'`,
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			settings, err := settingsFrom(c, set)
			if err != nil {
				return err
			}
			for _, s := range []struct{ key, value string }{
				{"runtime_path", path}, {"runtime_type", kind}, {"runtime_config_path", configPath},
			} {
				if s.value != "" {
					settings = append(settings, &adminv1.Setting{Key: s.key, Value: tomlfile.Quote(s.value)})
				}
			}
			resp, err := daemon.RegisterHandler(ctx, &adminv1.RegisterHandlerRequest{Name: args[0], Settings: settings})
			if err != nil {
				return err
			}
			return printChanged(r, c.OutOrStdout(), resp, resp.GetHandler(), "added", resp.GetFile())
		}),
	}
	r.Flags(c)
	flags := c.Flags()
	flags.StringVar(&path, "path", "", "absolute `path` of the runtime or shim (runtime_path)")
	flags.StringVar(&kind, "type", "", "oci or shim (runtime_type); the default follows from the binary's name")
	flags.StringVar(&configPath, "config-path", "", "absolute `path` of the runtime's own configuration (runtime_config_path)")
	flags.StringArrayVar(&set, "set", nil, "`key=value` of the handler; repeatable")
	return c
}

func removeCommand() *cobra.Command {
	r := &cli.Remote{}
	c := &cobra.Command{
		Use:     "rm NAME",
		Aliases: []string{"remove"},
		Short:   "Remove a handler that was added by \"berth handler add\"",
		Long: `Remove the drop-in of a handler and reload. Pods of the handler keep running; the
handler is listed as draining until its last pod is gone. A handler from another file is
not removed; the error names that file.`,
		Example: "  berth handler rm kata",
		Args:    cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := daemon.RemoveHandler(ctx, &adminv1.RemoveHandlerRequest{Name: args[0]})
			if err != nil {
				return err
			}
			lines := []string{fmt.Sprintf("handler %s removed (%s)", args[0], resp.GetFile())}
			if n := resp.GetPods(); n > 0 {
				lines = append(lines, fmt.Sprintf("draining: %s left; see \"berth pods --handler %s\"", output.Pods(n), args[0]))
			}
			return r.Print(c.OutOrStdout(), resp, output.Lines(lines))
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	return c
}

func editCommand() *cobra.Command {
	r := &cli.Remote{}
	var set, unset []string
	from := ""
	c := &cobra.Command{
		Use:   "edit NAME",
		Short: "Change a handler that was added by \"berth handler add\"",
		Long: `Change keys of a handler and reload. Without --set, --unset and --from, its keys are
opened in $VISUAL, else $EDITOR, else vi. Existing pods keep their settings. If the
daemon would reject the configuration, nothing is changed, and the edited text is kept in
a file that the last line names. Exit status 3 means that the handler was changed, but it
or its candidate binary cannot run pods.

` + aboutSettings,
		Example: "  berth handler edit kata\n  berth handler edit kata --set snapshotter=native --unset pod_annotations",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			req := &adminv1.UpdateHandlerRequest{Name: args[0], Unset: unset}
			var err error
			if req.Set, err = settingsFrom(c, set); err != nil {
				return err
			}
			switch given := len(req.GetSet())+len(req.GetUnset()) > 0; {
			case given && from != "":
				return commandline.Misused(c, errors.New("--from replaces all keys; it cannot be combined with --set and --unset"))
			case given:
				return r.With(c, func(ctx context.Context, daemon *client.Client) error { return updateHandler(ctx, r, c, daemon, req) })
			case from != "":
				return editByFile(r, c, args[0], from)
			}
			return editByHand(r, c, args[0])
		},
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().StringArrayVar(&set, "set", nil, "`key=value` of the handler; repeatable")
	c.Flags().StringArrayVar(&unset, "unset", nil, "`key` to remove; repeatable")
	c.Flags().StringVar(&from, "from", "", "`file` with all keys of the handler, as the editor shows them")
	return c
}

func updateHandler(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, req *adminv1.UpdateHandlerRequest) error {
	resp, err := daemon.UpdateHandler(ctx, req)
	if err != nil {
		return err
	}
	return printChanged(r, c.OutOrStdout(), resp, resp.GetHandler(), "changed", resp.GetFile())
}

// printChanged prints the new state of a handler.
func printChanged(r *cli.Remote, w io.Writer, resp proto.Message, h *adminv1.Handler, what, file string) error {
	line := output.Line("handler %s is %s (%s): %s, %s", h.GetName(), what, file, cli.StateWord(h.GetState()), cli.RuntimeOf(h))
	if err := r.Print(w, resp, line); err != nil {
		return err
	}
	if h.GetState() == adminv1.State_STATE_NOT_READY {
		return commandline.Found("the handler cannot run pods: %s; correct that, then run \"berth handler probe %s\"", h.GetReason(), h.GetName())
	}
	if c := h.GetRollout(); c.GetState() == string(rollout.NotReady) {
		return commandline.Found("the candidate %s cannot run pods: %s; correct that, then run \"berth handler probe %s\"", c.GetPath(), c.GetReason(), h.GetName())
	}
	return nil
}

func settingsFrom(c *cobra.Command, set []string) ([]*adminv1.Setting, error) {
	var settings []*adminv1.Setting
	for _, s := range set {
		key, value, ok := strings.Cut(s, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, commandline.Misused(c, fmt.Errorf("--set %q: write it as key=value", s))
		}
		settings = append(settings, &adminv1.Setting{Key: key, Value: dropin.Value(strings.TrimSpace(value))})
	}
	return settings, nil
}

// editByHand opens the keys of a handler in an editor, and sends the result. The edited text stays
// in a file until it is applied.
func editByHand(r *cli.Remote, c *cobra.Command, name string) error {
	had, err := editable(r, c, name)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "berth-"+name+"-*.toml")
	if err != nil {
		return err
	}
	before := asLines(name, had)
	if _, err := file.WriteString(before); err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	if err := file.Close(); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	err = runEditor(c, file.Name())
	text, unreadable := os.ReadFile(file.Name())
	keys, wrong := dropin.Parse(text)
	switch {
	case unreadable != nil:
		return errors.Join(err, unreadable)
	case string(text) == before, wrong == nil && len(keys) == 0:
		if err == nil {
			fmt.Fprintln(c.OutOrStdout(), "nothing changed: the file is as before, or has no keys")
		}
		return errors.Join(err, os.Remove(file.Name()))
	case err == nil:
		err = sendKeys(r, c, name, had, text)
	}
	if err != nil && commandline.Status(err) != commandline.Degraded {
		return fmt.Errorf("%w\nyour text is saved in %s; correct it there, then run \"berth handler edit %s --from %s\"", err, file.Name(), name, file.Name())
	}
	return errors.Join(err, os.Remove(file.Name()))
}

// editByFile replaces the keys of a handler by those in a file.
func editByFile(r *cli.Remote, c *cobra.Command, name, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return commandline.Wrong(err)
	}
	had, err := editable(r, c, name)
	if err != nil {
		return err
	}
	return sendKeys(r, c, name, had, text)
}

// editable returns the keys of a handler that may be edited.
func editable(r *cli.Remote, c *cobra.Command, name string) (keys []*adminv1.Setting, err error) {
	err = r.With(c, func(ctx context.Context, daemon *client.Client) error {
		resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: name})
		if err == nil && !resp.GetHandler().GetManaged() {
			// This call changes nothing, and its error has the reason.
			_, err = daemon.UpdateHandler(ctx, &adminv1.UpdateHandlerRequest{Name: name})
		}
		keys = resp.GetWritten()
		return err
	})
	return keys, err
}

func asLines(name string, settings []*adminv1.Setting) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Keys of [runtimes.%s]. Save to apply them; quit without saving, or empty the file, to change nothing.\n", name)
	for _, s := range settings {
		fmt.Fprintf(&b, "%s = %s\n", s.GetKey(), s.GetValue())
	}
	return b.String()
}

// sendKeys replaces the keys of a handler by those in a text.
func sendKeys(r *cli.Remote, c *cobra.Command, name string, had []*adminv1.Setting, text []byte) error {
	settings, err := dropin.Parse(text)
	if err != nil {
		return commandline.Wrong(err)
	}
	req := &adminv1.UpdateHandlerRequest{Name: name}
	req.Set, req.Unset = difference(had, settings)
	return r.With(c, func(ctx context.Context, daemon *client.Client) error { return updateHandler(ctx, r, c, daemon, req) })
}

// runEditor runs the editor through a shell, which splits the variable: EDITOR="code --wait". An
// interrupt at the terminal is for the editor: the terminal sends it to all processes, and berth
// and the shell keep waiting.
func runEditor(c *cobra.Command, file string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	cmd := exec.Command("/bin/sh", "-c", `trap : INT QUIT; `+editor+` "$1"`, "sh", file) //nolint:noctx // the user quits it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), output.Raw(c.OutOrStdout()), output.Raw(c.ErrOrStderr())
	// Signals are caught, not ignored: the editor would inherit ignored ones.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start editor %q: %w; set $EDITOR, or use --set key=value", editor, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("editor %q failed: %w; set $EDITOR, or use --set key=value", editor, err)
			}
			return nil
		case s := <-signals:
			if s == unix.SIGTERM || s == unix.SIGHUP {
				return errors.Join(fmt.Errorf("killed by signal %v", s), cmd.Process.Signal(s))
			}
		}
	}
}

// difference returns the keys to set and to remove to get from had to wanted. Pure.
func difference(had []*adminv1.Setting, wanted []dropin.Setting) (set []*adminv1.Setting, unset []string) {
	values := map[string]string{}
	for _, s := range had {
		values[s.GetKey()] = s.GetValue()
	}
	for _, s := range wanted {
		if before, there := values[s.Key]; !there || before != s.Value {
			set = append(set, &adminv1.Setting{Key: s.Key, Value: s.Value})
		}
		delete(values, s.Key)
	}
	return set, slices.Sorted(maps.Keys(values))
}
