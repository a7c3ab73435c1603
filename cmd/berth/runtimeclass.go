package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/internal/classcmd"
	"github.com/berth-cri/berth/cmd/internal/output"
)

// workOnClasses does the work of "berth runtimeclass".
var workOnClasses classcmd.Run = handOver

// runtimeclassCommand makes "berth runtimeclass".
func runtimeclassCommand() *cobra.Command {
	return classcmd.New(func(ctx context.Context, call classcmd.Call) error { return workOnClasses(ctx, call) }, misused)
}

// handOver has the program beside this one do the work. It prints what there is to say.
func handOver(ctx context.Context, call classcmd.Call) error {
	program, err := besides(classcmd.Program)
	if err != nil {
		return err
	}
	work := exec.CommandContext(ctx, program, call.Line()...)
	work.Stdin, work.Stdout, work.Stderr = call.Stdin, output.Raw(call.Stdout), output.Raw(call.Stderr)
	err = work.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return &classcmd.Exit{Code: ended.ExitCode()}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// besides finds a program of berth's: where this one is, else in the PATH.
func besides(name string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	if own, err = filepath.EvalSymlinks(own); err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(own), name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if path, err = exec.LookPath(name); err != nil {
		return "", fmt.Errorf("%s is neither in %s nor in the PATH; install it beside berth", name, filepath.Dir(own))
	}
	return path, nil
}
