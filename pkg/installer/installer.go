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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/log"

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

// hook is called at named places, where tests interrupt.
type hook func(place string)

// settling is a step that saves what was last good, for when something newer is not.
type settling interface {
	// settled returns what is saved from now on.
	settled(saved []byte) ([]byte, error)
}

// guarded is a step whose undoing may have to wait for something else.
type guarded interface {
	// mayUndo returns what keeps the step from being undone. It changes nothing.
	mayUndo(ctx context.Context, saved []byte) error
}

// step is one part of an installation. What is saved before it begins is JSON of its own.
type step interface {
	// name is what the journal knows the step by.
	name() string
	// input changes when do must run again.
	input() string
	// alone says that a failure of the step undoes only the step.
	alone() bool
	// prepare returns what undo needs. It is given what an earlier run has saved, which
	// must stay true, or nil. It changes nothing.
	prepare(ctx context.Context, saved []byte) ([]byte, error)
	// do makes it so, also where an earlier run was interrupted.
	do(ctx context.Context, saved []byte) error
	// undo leaves what was there before, also where an earlier run was interrupted.
	undo(ctx context.Context, saved []byte) error
}

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
	for {
		unlock, err := waitForLock(ctx, i.root())
		if err != nil {
			return err
		}
		err = func() error { defer unlock(); return f() }()
		if err == nil {
			i.Cluster.Done()
			i.turn = false
			return nil
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
	if err := i.finishUndoing(ctx, j); err != nil {
		return err
	}
	steps, err := i.steps(ctx, w, j)
	if err != nil {
		return err
	}
	names := make([]string, len(steps))
	for n, s := range steps {
		names[n] = s.name()
	}
	for _, e := range slices.Backward(slices.Clone(j.Steps)) {
		if slices.Contains(names, e.Name) {
			continue
		}
		if err := i.undo(ctx, j, e.Name); err != nil {
			return err
		}
	}
	if i.unwritten != nil {
		return i.unwritten
	}
	return i.doAll(ctx, j, steps)
}

// finishUndoing goes on with what an interrupted run was undoing.
func (i *Installer) finishUndoing(ctx context.Context, j *journal) error {
	for _, e := range slices.Backward(slices.Clone(j.Steps)) {
		if e.State == undoing {
			if err := i.undo(ctx, j, e.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (i *Installer) doAll(ctx context.Context, j *journal, steps []step) error {
	var failed []error
	for n, s := range steps {
		err := i.do(ctx, j, s)
		if err == nil && !s.alone() && (n+1 == len(steps) || steps[n+1].alone()) {
			err = i.complete(j)
		}
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", s.name(), err)
		if ctx.Err() != nil || errors.Is(err, errTurn) {
			return err // interrupted, and nothing is wrong: the next run goes on
		}
		if s.alone() {
			failed = append(failed, errors.Join(err, i.undoNew(ctx, j, s.name())))
			continue
		}
		return errors.Join(err, i.undoNew(ctx, j, ""))
	}
	return errors.Join(failed...)
}

// complete notes that the installation has come to its end. What fails later undoes none of it.
func (i *Installer) complete(j *journal) error {
	changed := false
	for n := range j.Steps {
		e := &j.Steps[n]
		if e.New && e.State == done {
			e.New, changed = false, true
		}
	}
	if !changed {
		return nil
	}
	return j.write()
}

func (i *Installer) do(ctx context.Context, j *journal, s step) error {
	e := j.entry(s.name())
	if e != nil && e.State == done && e.Input == s.input() {
		return nil
	}
	if !i.turn {
		return errTurn
	}
	var before []byte
	if e != nil {
		before = e.Saved
	}
	saved, err := s.prepare(ctx, before)
	if err != nil {
		return err
	}
	if e == nil {
		j.Steps = append(j.Steps, entry{Name: s.name(), New: true})
		e = j.entry(s.name())
	}
	e.State, e.Input, e.Saved = doing, s.input(), saved
	if err := j.write(); err != nil {
		return err
	}
	log.G(ctx).WithField("step", s.name()).Info("Beginning step")
	i.at("installer." + s.name() + ".noted")
	if err := s.do(ctx, saved); err != nil {
		return err
	}
	i.at("installer." + s.name() + ".made")
	if g, ok := s.(settling); ok {
		if e.Saved, err = g.settled(saved); err != nil {
			return err
		}
	}
	e.State = done
	if s.alone() {
		e.New = false
	}
	if err := j.write(); err != nil {
		return err
	}
	i.at("installer." + s.name() + ".done")
	return nil
}

// undoNew undoes, last first, what was never done as a whole together with what came
// with it: the step of that name, or all of an installation that did not come to its end.
// An installation that was there before stays, for it has the node's pods.
func (i *Installer) undoNew(ctx context.Context, j *journal, name string) error {
	if name != "" {
		if e := j.entry(name); e == nil || !e.New {
			return nil
		}
		return i.undo(ctx, j, name)
	}
	for _, e := range slices.Backward(slices.Clone(j.Steps)) {
		if !e.New {
			continue
		}
		if err := i.undo(ctx, j, e.Name); err != nil {
			return err
		}
	}
	if len(j.Steps) > 0 {
		return nil
	}
	return j.removeFile()
}

func (i *Installer) undo(ctx context.Context, j *journal, name string) error {
	e := j.entry(name)
	s, err := i.stepOf(name)
	if err != nil {
		return err
	}
	if err := i.mayUndo(ctx, s, e); err != nil {
		return err
	}
	if !i.turn {
		return errTurn
	}
	e.State = undoing
	if err := j.write(); err != nil {
		// A full disk is no reason to leave the kubelet where it is: undoing makes room.
		log.G(ctx).WithError(err).WithField("step", name).Warn("Failed to write the journal; undoing all the same")
	}
	log.G(ctx).WithField("step", name).Info("Undoing step")
	i.at("installer." + name + ".undoing")
	if err := s.undo(ctx, e.Saved); err != nil {
		return fmt.Errorf("undo %s: %w", name, err)
	}
	i.at("installer." + name + ".undone")
	j.remove(name)
	i.unwritten = j.write()
	return nil
}

func (i *Installer) mayUndo(ctx context.Context, s step, e *entry) error {
	if g, ok := s.(guarded); ok {
		if err := g.mayUndo(ctx, e.Saved); err != nil {
			return fmt.Errorf("undo %s: %w", e.Name, err)
		}
	}
	return nil
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
	return i.mayUndo(ctx, s, e)
}

// lead has every handler lead to the other daemon, so that the engine gets no more pods. If
// berth is wanted again, the next installation does those steps anew.
func (i *Installer) lead(ctx context.Context, j *journal) error {
	e := j.entry(configStep)
	if e == nil {
		return nil
	}
	var config savedConfiguration
	if err := json.Unmarshal(e.Saved, &config); err != nil {
		return err
	}
	var originals []nodefs.Original
	base := configTexts(config.Beside, "")
	files, err := (nodefs.Set{Content: base}).Prepare(i.root(), config.Files)
	if err != nil {
		return err
	}
	config.Files = files
	if e.Saved, err = json.Marshal(config); err != nil {
		return err
	}
	e.State = doing
	for n := range j.Steps {
		r := &j.Steps[n]
		if !strings.HasPrefix(r.Name, runtimeStep) || r.State == undoing {
			continue
		}
		var saved savedRuntime
		if err := json.Unmarshal(r.Saved, &saved); err != nil {
			return err
		}
		for n := range saved.Files {
			saved.Files[n].Writes(base[saved.Files[n].Path])
		}
		originals = append(originals, saved.Files...)
		text, err := json.Marshal(saved)
		if err != nil {
			return err
		}
		r.State, r.Saved = doing, text
	}
	if err := j.write(); err != nil {
		return err
	}
	if err := i.root().RestoreAll(originals); err != nil {
		return err
	}
	if err := (nodefs.Set{Content: base}).Do(i.root(), config.Files); err != nil {
		return err
	}
	if d := i.daemon(); d.active(ctx) {
		return d.reload(ctx)
	}
	return nil // it reads the files when it starts
}
