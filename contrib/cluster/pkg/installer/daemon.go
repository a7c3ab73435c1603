package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// daemon is the berth of the node, as its commands show it.
type daemon struct {
	host Host
	// patience is for what becomes true by itself.
	patience time.Duration
}

// active returns whether it runs.
func (d daemon) active(ctx context.Context) bool {
	_, err := d.host.Run(ctx, "systemctl", "is-active", "--quiet", "berth.service")
	return err == nil
}

// finding is one of "berth doctor".
type finding struct {
	Check, Level, Text, Next string
}

// green asks the doctor. Until the kubelet is moved, its findings on the kubelet are known.
func (d daemon) green(ctx context.Context, moved bool) error {
	out, runErr := d.host.Run(ctx, program, "doctor", "-o", "json")
	var answer struct{ Findings []finding }
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Findings) == 0 {
		return fmt.Errorf("run the doctor: %w", errors.Join(runErr, err))
	}
	if err := failures(answer.Findings, moved); err != nil {
		return err
	}
	return d.ready(ctx)
}

// failures are findings that keep the kubelet from being moved.
func failures(all []finding, moved bool) error {
	var wrong []error
	for _, f := range all {
		if f.Level != "fail" || !moved && (f.Check == "kubelet" || f.Check == "kubeadm") {
			continue
		}
		wrong = append(wrong, fmt.Errorf("doctor: %s: %s; %s", f.Check, f.Text, f.Next))
	}
	return errors.Join(wrong...)
}

// handler is one of "berth handlers".
type handler struct {
	Name, State, Reason string
	Pods                int
	IsDefault           bool
}

func (d daemon) handlers(ctx context.Context) ([]handler, error) {
	out, err := d.host.Run(ctx, program, "handlers", "-o", "json")
	var answer struct{ Handlers []handler }
	if jsonErr := json.Unmarshal(out, &answer); jsonErr != nil {
		return nil, fmt.Errorf("list handlers: %w", errors.Join(err, jsonErr))
	}
	return answer.Handlers, nil
}

// patience is how long that may take.
const patience = 30 * time.Second

// ready waits until the default handler can run pods: berth asks a daemon that it has
// just heard of. Other handlers may lack their binary in the other daemon as well.
func (d daemon) ready(ctx context.Context) error {
	return eventually(ctx, d.patience, func() error {
		all, err := d.handlers(ctx)
		if err != nil {
			return err
		}
		return defaultReady(all)
	})
}

// serves returns nil if a handler can run pods.
func (d daemon) serves(ctx context.Context, name string) error {
	all, err := d.handlers(ctx)
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.Name == name && h.State == "STATE_NOT_READY" {
			return fmt.Errorf("handler %s is not ready: %s", h.Name, h.Reason)
		}
		if h.Name == name {
			return nil
		}
	}
	return fmt.Errorf("berth does not have the handler %s", name)
}

func defaultReady(all []handler) error {
	for _, h := range all {
		if h.IsDefault && h.State == "STATE_READY" {
			return nil
		}
		if h.IsDefault {
			return fmt.Errorf("handler %s is not ready: %s", h.Name, h.Reason)
		}
	}
	return errors.New("berth has no default handler")
}

// reload has the daemon read its files, and returns what waits for its next start. It returns an
// error if they are refused, and not what some handler lacks.
func (d daemon) reload(ctx context.Context) (waits []string, err error) {
	out, err := d.host.Run(ctx, program, "reload", "--wait", "-o", "json")
	if err != nil && exitStatus(err) != degraded {
		return nil, err
	}
	var answer struct{ NeedsRestart []string }
	if jsonErr := json.Unmarshal(out, &answer); jsonErr != nil {
		return nil, fmt.Errorf("reload: %w", errors.Join(err, jsonErr))
	}
	return answer.NeedsRestart, nil
}

// degraded is the exit status of a berth that did what it was asked, and saw something else.
const degraded = 3

func exitStatus(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return -1
}
