package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/internal/output"
)

// plugin is the program that has the commands about classes.
const plugin = "kubectl-berth"

// runtimeclassCommand makes "berth runtimeclass", the old name of commands of the plugin.
func runtimeclassCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "runtimeclass",
		Short:              "Run a command of kubectl berth",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			program, err := findPlugin()
			if err != nil {
				return &codedError{exitConfig, err}
			}
			if len(args) > 0 && args[0] == "fit" {
				// It was about files alone.
				args = append([]string{"fit", "--local"}, args[1:]...)
			}
			work := exec.CommandContext(c.Context(), program, args...) //nolint:gosec // berth's own program
			work.Stdin, work.Stdout, work.Stderr = c.InOrStdin(), output.Raw(c.OutOrStdout()), output.Raw(c.ErrOrStderr())
			err = work.Run()
			var ended *exec.ExitError
			if errors.As(err, &ended) && ended.Exited() {
				return &codedError{code: ended.ExitCode()}
			}
			return err
		},
	}
}

// findPlugin looks where this program is, and then in the PATH.
func findPlugin() (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	if own, err = filepath.EvalSymlinks(own); err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(own), plugin)
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath(plugin)
	if err != nil {
		return "", fmt.Errorf("install %s (the package kubectl-berth) and run \"kubectl berth\" instead of \"berth runtimeclass\"", plugin)
	}
	return path, nil
}
