package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

func (i *Installer) active(ctx context.Context) bool {
	_, err := i.Host.Run(ctx, "systemctl", "is-active", "--quiet", "berth.service")
	return err == nil
}

// checkHealth runs the doctor, and waits until the default handler is ready. Findings about the
// kubelet count only if the kubelet was moved to berth.
func (i *Installer) checkHealth(ctx context.Context, moved bool) error {
	out, runErr := i.Host.Run(ctx, program, "doctor", "-o", "json")
	var answer struct {
		Findings []struct{ Check, Level, Text, Next string }
	}
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Findings) == 0 {
		return fmt.Errorf("run the doctor: %w", errors.Join(runErr, err))
	}
	var wrong []error
	for _, f := range answer.Findings {
		if f.Level == "fail" && (moved || f.Check != "kubelet" && f.Check != "kubeadm") {
			wrong = append(wrong, fmt.Errorf("doctor: %s: %s; %s", f.Check, f.Text, f.Next))
		}
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	return i.ready(ctx)
}

// handler is an entry of "berth handlers".
type handler struct {
	Name, State, Reason string
	IsDefault           bool
}

func (i *Installer) handlers(ctx context.Context) ([]handler, error) {
	out, err := i.Host.Run(ctx, program, "handlers", "-o", "json")
	var answer struct{ Handlers []handler }
	if jsonErr := json.Unmarshal(out, &answer); jsonErr != nil {
		return nil, fmt.Errorf("list handlers: %w", errors.Join(err, jsonErr))
	}
	return answer.Handlers, nil
}

// patience bounds the waits for berth and for the other daemon.
const patience = 30 * time.Second

// ready waits until the default handler can run pods: berth queries the other daemon only after the
// reload. Other handlers are not checked: they may be broken in the other daemon, too.
func (i *Installer) ready(ctx context.Context) error {
	return eventually(ctx, i.patience, func() error {
		all, err := i.handlers(ctx)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(all, func(h handler) bool { return h.IsDefault })
		switch {
		case n < 0:
			return errors.New("berth has no default handler")
		case all[n].State != "STATE_READY":
			return fmt.Errorf("handler %s is not ready: %s", all[n].Name, all[n].Reason)
		}
		return nil
	})
}

// serves returns an error if a handler is missing or not ready.
func (i *Installer) serves(ctx context.Context, name string) error {
	all, err := i.handlers(ctx)
	if err != nil {
		return err
	}
	n := slices.IndexFunc(all, func(h handler) bool { return h.Name == name })
	switch {
	case n < 0:
		return fmt.Errorf("berth does not have the handler %s", name)
	case all[n].State == "STATE_NOT_READY":
		return fmt.Errorf("handler %s is not ready: %s", name, all[n].Reason)
	}
	return nil
}

// reload makes the daemon read its files, and returns the settings that take effect only at its
// next start. It returns an error if the files are rejected, but not if a handler is not ready.
func (i *Installer) reload(ctx context.Context) (waits []string, err error) {
	out, err := i.Host.Run(ctx, program, "reload", "--wait", "-o", "json")
	if err != nil && exitStatus(err) != degraded {
		return nil, err
	}
	var answer struct{ NeedsRestart []string }
	if jsonErr := json.Unmarshal(out, &answer); jsonErr != nil {
		return nil, fmt.Errorf("reload: %w", errors.Join(err, jsonErr))
	}
	return answer.NeedsRestart, nil
}

// degraded is the exit status of a berth command that succeeded but found a problem.
const degraded = 3

func exitStatus(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return -1
}
