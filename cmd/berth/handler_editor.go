package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// editByHand opens what is written of a handler in an editor, and sends what
// came of it.
func editByHand(ctx context.Context, c *cobra.Command, daemon *client.Client, req *adminv1.UpdateHandlerRequest) error {
	resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: req.GetName()})
	if err != nil {
		return err
	}
	if !resp.GetHandler().GetManaged() {
		// The daemon says best why, and changes nothing.
		return update(ctx, c, daemon, req)
	}
	file, err := os.CreateTemp("", "berth-"+req.GetName()+"-*.toml")
	if err != nil {
		return err
	}
	before := asLines(req.GetName(), resp.GetWritten())
	if _, err := file.WriteString(before); err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	if err := file.Close(); err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	if err := sendEdited(ctx, c, daemon, req, file.Name(), before, resp.GetWritten()); err != nil {
		return fmt.Errorf("%w\nyour text is in %s", coded(daemon, err), file.Name())
	}
	return os.Remove(file.Name())
}

func asLines(name string, settings []*adminv1.Setting) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Keys of [runtimes.%s]. Save to put them in force; save nothing to change nothing.\n", name)
	for _, s := range settings {
		fmt.Fprintf(&b, "%s = %s\n", s.GetKey(), s.GetValue())
	}
	return b.String()
}

func sendEdited(ctx context.Context, c *cobra.Command, daemon *client.Client, req *adminv1.UpdateHandlerRequest, file, before string, had []*adminv1.Setting) error {
	if err := runEditor(ctx, c, file); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if string(text) == before {
		fmt.Fprintln(c.OutOrStdout(), "nothing was changed")
		return nil
	}
	settings, err := config.ParseSettings(text)
	if err != nil {
		return &codedError{exitConfig, err}
	}
	req.Set, req.Unset = difference(had, settings)
	return update(ctx, c, daemon, req)
}

// runEditor lets a shell split the variable, as others do: EDITOR="code --wait".
func runEditor(ctx context.Context, c *cobra.Command, file string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "sh", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the editor %q failed: %w; set $EDITOR, or use --set key=value", editor, err)
	}
	return nil
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
	for key := range values {
		unset = append(unset, key)
	}
	slices.Sort(unset)
	return set, unset
}
