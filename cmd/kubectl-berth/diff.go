package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// externalDiff is kubectl's variable for the program that shows differences.
const externalDiff = "KUBECTL_EXTERNAL_DIFF"

// errDiffers is the end of a command that has shown differences: as "kubectl diff", which
// scripts know, it ends with 1.
var errDiffers = &exitError{code: 1}

// showDiff has a program show what would change, as "kubectl diff" does: it gets a
// directory of what is and one of what would be.
func (p *applyCommand) showDiff(ctx context.Context, all []change) error {
	top, err := os.MkdirTemp("", "kubectl-berth-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(top)
	now, then := filepath.Join(top, "LIVE"), filepath.Join(top, "MERGED")
	for _, dir := range []string{now, then} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	for _, c := range all {
		name := "node.k8s.io.v1.RuntimeClass.." + c.object.GetName()
		if c.before != nil {
			if err := writeShown(filepath.Join(now, name), c.before); err != nil {
				return err
			}
		}
		if err := writeShown(filepath.Join(then, name), c.after); err != nil {
			return err
		}
	}
	command := strings.Fields(os.Getenv(externalDiff))
	if len(command) == 0 {
		command = []string{"diff", "-u", "-N"}
	}
	shows := exec.CommandContext(ctx, command[0], append(command[1:], now, then)...) //nolint:gosec // the user's own program
	shows.Stdout, shows.Stderr = p.Out, p.ErrOut
	err = shows.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && ended.ExitCode() == 1:
		return errDiffers
	case err != nil:
		return fmt.Errorf("run %q to show the differences: %w", strings.Join(command, " "), err)
	}
	return nil
}

// writeShown writes a class without what every apply changes.
func writeShown(path string, o *unstructured.Unstructured) error {
	shown, err := shownClass(o)
	if err != nil {
		return err
	}
	shown.ResourceVersion, shown.Generation = "", 0
	text, err := yaml.Marshal(shown)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
