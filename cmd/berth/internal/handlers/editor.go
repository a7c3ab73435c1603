package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// editByHand opens what is written of a handler in an editor, and sends what came
// of it. What somebody typed is in a file until it is in force.
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
	// No context: the editor ends when whoever sits before it wants to.
	err = runEditor(c, file.Name())
	text, unreadable := os.ReadFile(file.Name())
	switch {
	case unreadable != nil:
		return errors.Join(err, unreadable)
	case string(text) == before:
		if err == nil {
			fmt.Fprintln(c.OutOrStdout(), "nothing changed")
		}
		return errors.Join(err, os.Remove(file.Name()))
	case err == nil:
		err = sendKeys(r, c, name, had, text)
	}
	if err != nil && commandline.Status(err) != commandline.Degraded {
		return fmt.Errorf("%w\nyour text is saved in %s; correct it there, then \"berth handler edit %s --from %s\"", err, file.Name(), name, file.Name())
	}
	return errors.Join(err, os.Remove(file.Name()))
}

// editByFile makes the keys of a handler those of a file.
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

// editable are the keys of a handler that may be edited.
func editable(r *cli.Remote, c *cobra.Command, name string) (keys []*adminv1.Setting, err error) {
	return keys, r.With(c, func(ctx context.Context, daemon *client.Client) error {
		resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: name})
		if err == nil && !resp.GetHandler().GetManaged() {
			// The daemon says best why, and changes nothing.
			_, err = daemon.UpdateHandler(ctx, &adminv1.UpdateHandlerRequest{Name: name})
		}
		keys = resp.GetWritten()
		return err
	})
}

func asLines(name string, settings []*adminv1.Setting) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Keys of [runtimes.%s]. Save to apply them; save an empty file to change nothing.\n", name)
	for _, s := range settings {
		fmt.Fprintf(&b, "%s = %s\n", s.GetKey(), s.GetValue())
	}
	return b.String()
}

// sendKeys has the daemon make the keys of a handler those of a text.
func sendKeys(r *cli.Remote, c *cobra.Command, name string, had []*adminv1.Setting, text []byte) error {
	settings, err := config.ParseSettings(text)
	if err != nil {
		return commandline.Wrong(err)
	}
	req := &adminv1.UpdateHandlerRequest{Name: name}
	req.Set, req.Unset = difference(had, settings)
	return r.With(c, func(ctx context.Context, daemon *client.Client) error { return updateHandler(ctx, r, c, daemon, req) })
}

// runEditor lets a shell split the variable, as others do: EDITOR="code --wait".
// An interrupt at the terminal is the editor's: it reaches all of its processes,
// of which berth and the shell wait on.
func runEditor(c *cobra.Command, file string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	cmd := exec.Command("/bin/sh", "-c", `trap : INT QUIT; `+editor+` "$1"`, "sh", file) //nolint:noctx // it ends when its user wants to
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), output.Raw(c.OutOrStdout()), output.Raw(c.ErrOrStderr())
	// Caught, because the editor would inherit that they are ignored.
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

// difference is what has to be set and taken out to get from had to wanted. Pure.
func difference(had []*adminv1.Setting, wanted []config.Setting) (set []*adminv1.Setting, unset []string) {
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
