// Package installer brings berth to a node that has another CRI daemon, moves the kubelet
// to it, and takes both back.
//
// What is to be done is a list of steps. Each says beside what it does how that is undone.
// Before a step changes anything, what it needs for undoing is in the journal on the
// node's disk: a run that was interrupted at any place is finished, or undone, by the next.
//
// Paths are those of the node. Its root directory is mounted somewhere, and its programs
// are run by a Host.
package installer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// Host runs programs of the node.
type Host interface {
	// Run returns what a program prints to stdout. If it fails, the error has what it
	// prints to stderr.
	Run(ctx context.Context, name string, args ...string) ([]byte, error)
}

// Cluster is what the node's cluster is asked for.
type Cluster interface {
	// Turn waits until no other node is being changed. Who has the turn gets it again.
	Turn(ctx context.Context) error
	// Done gives the turn to another node.
	Done()
	// MayAsk returns why Serves will not be able to say anything.
	MayAsk(ctx context.Context) error
	// Serves returns nil if the node is Ready by a kubelet that uses berth, or another runtime.
	Serves(ctx context.Context, berth bool) error
}

// Backend is asked what another CRI daemon has.
type Backend interface {
	// Ask asks the daemon at that socket of the node.
	Ask(ctx context.Context, endpoint string) (Beside, error)
}

// Installer works on one node.
type Installer struct {
	// Root is where the node's root directory is.
	Root string
	// Payload is the directory with the programs and the unit that are brought.
	Payload string
	// Self is this program, which stays on the node as long as it may be needed there.
	Self    string
	Host    Host
	Cluster Cluster
	Backend Backend
	// patience is for what becomes true by itself.
	patience time.Duration
	// turn says that this node is the one that is being changed.
	turn bool
	// unwritten is why the journal does not have the last step that was undone. Who removes
	// the journal in the end does not mind.
	unwritten error
	// at is called at named places, where tests interrupt.
	at hook
}

// New returns an installer, or what it lacks.
func New(i Installer) (*Installer, error) {
	if i.Root == "" || i.Payload == "" || i.Self == "" || i.Host == nil || i.Cluster == nil || i.Backend == nil {
		return nil, errors.New("an installer needs a root, a payload, itself, a host, a cluster and a backend")
	}
	if i.at == nil {
		i.at = failpoint.Hit
	}
	i.patience = patience
	return &i, nil
}

// root is the node's root directory.
func (i *Installer) root() nodefs.Root { return nodefs.Root(i.Root) }

// Install makes the node as it is wanted. If something fails for the first time, what
// was not there before is undone. After a failure the node keeps its turn, so that no
// other node meets the same.
func (i *Installer) Install(ctx context.Context, w Wanted) error {
	if err := w.Validate(); err != nil {
		return err
	}
	return i.exclusive(ctx, func() error { return i.install(ctx, w) })
}

// errTurn is the reason if something is to be changed, and it is not the node's turn.
var errTurn = errors.New("it is not the node's turn")

// exclusive runs f without another run on this node, and on no other node when it changes
// something. While it waits for its turn, the node may be rescued: f begins anew after that.
func (i *Installer) exclusive(ctx context.Context, f func() error) error {
	i.turn, i.unwritten = false, nil // of an earlier run: who has the turn gets it again
	for {
		unlock, err := waitForLock(ctx, i.root())
		if err != nil {
			return err
		}
		err = func() error { defer unlock(); return f() }()
		if err == nil || errors.Is(err, ErrPods) || errors.Is(err, errUnheld) {
			i.Cluster.Done() // what this node waits for, or has lost, is no other node's concern
			i.turn = false
		}
		if !errors.Is(err, errTurn) {
			return err
		}
		if err := i.Cluster.Turn(ctx); err != nil {
			return err
		}
		i.turn = true
	}
}

func (i *Installer) install(ctx context.Context, w Wanted) error {
	j, err := readJournal(i.root())
	if err != nil {
		return err
	}
	// A mistake in the values is told before anything is undone for them.
	beside, err := i.survey(ctx, w, j)
	if err != nil {
		return err
	}
	if _, err := i.steps(ctx, w, beside, j); err != nil {
		return err
	}
	waits, err := i.undoFirst(ctx, j, w.steps())
	if err != nil {
		return err
	}
	if i.unwritten != nil {
		return i.unwritten
	}
	steps, err := i.steps(ctx, w, beside, j)
	if err == nil {
		err = i.doAll(ctx, j, steps)
	}
	if err != nil && waits != nil {
		return fmt.Errorf("%w; and %v", err, waits) // what waits is no reason to try again
	}
	return errors.Join(err, waits)
}

// undoFirst undoes steps that are not wanted, and finishes what an interrupted run was undoing.
// waits is why some runtimes are not undone yet, for which nothing that is wanted has to wait.
func (i *Installer) undoFirst(ctx context.Context, j *journal, wanted []string) (waits, err error) {
	for _, e := range slices.Backward(slices.Clone(j.Steps)) {
		keeps := slices.Contains(wanted, e.Name)
		if keeps && e.State != undoing {
			continue
		}
		err := i.undo(ctx, j, e.Name)
		switch {
		case err == nil:
		case !errors.Is(err, ErrPods) || !strings.HasPrefix(e.Name, runtimeStep):
			return nil, err
		case !keeps:
			waits = errors.Join(waits, err)
		}
	}
	return waits, nil
}

// ErrPods is the reason if something cannot be taken away because pods need it.
var ErrPods = errors.New("try again when these pods are gone")

// Uninstall leaves the node as it was before. It refuses to while pods run in berth's own
// engine, because nobody would know them any more. New pods go to the other daemon meanwhile.
func (i *Installer) Uninstall(ctx context.Context) error {
	return i.exclusive(ctx, func() error { return i.uninstall(ctx) })
}

func (i *Installer) uninstall(ctx context.Context) error {
	j, err := readJournal(i.root())
	if err != nil {
		return err
	}
	if err := i.mayGoBack(ctx, j); err != nil {
		if errors.Is(err, ErrPods) {
			err = errors.Join(err, i.lead(ctx, j))
		}
		return err
	}
	for _, e := range slices.Backward(slices.Clone(j.Steps)) {
		if err := i.undo(ctx, j, e.Name); err != nil {
			return err
		}
	}
	return j.removeFile()
}

// mayGoBack returns what keeps the kubelet from going back, before anything is undone.
func (i *Installer) mayGoBack(ctx context.Context, j *journal) error {
	name := kubeletStep
	if j.entry(name) == nil {
		name = startStep
	}
	e := j.entry(name)
	if e == nil {
		return nil
	}
	s, err := i.stepOf(name)
	if err != nil {
		return err
	}
	return mayUndo(ctx, s, e)
}
