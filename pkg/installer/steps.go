package installer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
)

// Programs is the directory on the node that has the programs in use.
const Programs = current + "/bin"

// Where things are on the node.
const (
	home       = "/opt/berth"
	current    = home + "/current"
	program    = Programs + "/berth"
	unitFile   = units + "/berth.service"
	wants      = units + "/multi-user.target.wants/berth.service"
	configFile = "/etc/berth/config.toml"
	dropIns    = "/etc/berth/conf.d"
	extraFile  = dropIns + "/90-installer.toml"
	socket     = kubelet.Berth
)

// Names of steps. runtimeStep is followed by the handler.
const (
	programsStep = "programs"
	configStep   = "config"
	unitStep     = "unit"
	startStep    = "start"
	kubeletStep  = "kubelet"
	runtimeStep  = "runtime-"
)

// steps are the names of those of what is wanted.
func (w Wanted) steps() []string {
	names := []string{programsStep, configStep, unitStep, startStep}
	if w.Kubelet {
		names = append(names, kubeletStep)
	}
	for _, r := range w.Runtimes {
		names = append(names, runtimeStep+r.Handler)
	}
	return names
}

// steps are those of what is wanted, in their order.
func (i *Installer) steps(ctx context.Context, w Wanted, beside Beside, j *journal) ([]step, error) {
	left := map[string]bool{}
	for _, r := range w.Runtimes {
		if r.Handler == beside.name() {
			return nil, fmt.Errorf("runtime %q: berth calls the handler so that leads to the other CRI daemon's default; choose another name", r.Handler)
		}
		if j.entry(runtimeStep+r.Handler) != nil {
			left[r.file()] = true
		}
	}
	config := i.configuration()
	config.beside, config.left, config.extra = beside, left, w.Config
	programs, start := i.programs(), i.startOf(ctx, j)
	programs.version, start.version, start.config = w.Version, w.Version, config.input()
	steps := []step{programs, config, i.unit(), start}
	if w.Kubelet {
		move := i.kubeletMove()
		if j.entry(kubeletStep) == nil {
			// What keeps the kubelet where it is, is known before anything changes.
			if _, _, err := move.plan(); err != nil {
				return nil, i.mine(fmt.Errorf("%s: %w", kubeletStep, err))
			}
		}
		steps = append(steps, move)
	}
	for _, r := range w.Runtimes {
		steps = append(steps, i.broughtRuntime(r))
	}
	return steps, nil
}

// stepOf is the step of a name, as far as undo needs it.
func (i *Installer) stepOf(name string) (step, error) {
	switch name {
	case programsStep:
		return i.programs(), nil
	case configStep:
		return i.configuration(), nil
	case unitStep:
		return i.unit(), nil
	case startStep:
		return i.start(), nil
	case kubeletStep:
		return i.kubeletMove(), nil
	}
	if handler, ok := strings.CutPrefix(name, runtimeStep); ok {
		return i.broughtRuntime(Runtime{Handler: handler}), nil
	}
	return nil, fmt.Errorf("the journal has a step %q: use the installer that wrote it", name)
}

// Each step has what it works with, and nothing of what is wanted yet.

func (i *Installer) daemon() daemon { return daemon{host: i.Host, patience: i.patience} }

func (i *Installer) programs() *programs {
	return &programs{root: i.root(), host: i.Host, at: i.at, payload: i.Payload, self: i.Self}
}

func (i *Installer) configuration() *configuration {
	return &configuration{root: i.root(), at: i.at}
}

func (i *Installer) unit() *unit {
	return &unit{root: i.root(), host: i.Host, at: i.at, payload: i.Payload}
}

func (i *Installer) start() *start {
	return &start{root: i.root(), host: i.Host, at: i.at, daemon: i.daemon()}
}

// startOf is the step with its way back.
func (i *Installer) startOf(ctx context.Context, j *journal) *start {
	s := i.start()
	s.configBack = func() (bool, error) { return i.configBack(ctx, j) }
	s.again = func(name string) { j.again(ctx, name) }
	s.wroteUnit = j.wroteUnit
	e := j.entry(kubeletStep)
	s.moving = e != nil && e.State != done
	return s
}

func (i *Installer) kubeletMove() *kubeletMove {
	return &kubeletMove{root: i.root(), host: i.Host, at: i.at, cluster: i.Cluster, backend: i.Backend, daemon: i.daemon(), patience: i.patience}
}

func (i *Installer) broughtRuntime(r Runtime) *broughtRuntime {
	return &broughtRuntime{root: i.root(), at: i.at, daemon: i.daemon(), patience: i.patience, r: r}
}

// ErrFinal is an error of a Cluster's that does not pass by itself.
var ErrFinal = errors.New("asking again does not help")

// eventually repeats a question until the answer is good, or patience ends.
func eventually(ctx context.Context, patience time.Duration, ask func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil || errors.Is(err, ErrFinal) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
