package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/log"
)

// hook is called at named places, where tests interrupt.
type hook func(place string)

// settling is a step that saves what was last good, for when something newer is not.
type settling interface {
	// settled returns what is saved from now on.
	settled(saved []byte) ([]byte, error)
}

// completing is a step that saves what was good, for when something newer is not.
type completing interface {
	// completed returns what is saved when the installation has come to its end.
	completed(saved []byte) ([]byte, error)
}

// guarded is a step whose undoing may have to wait for something else.
type guarded interface {
	// mayUndo returns what keeps the step from being undone. It changes nothing.
	mayUndo(ctx context.Context, saved []byte) error
}

// lasting is a step whose work somebody else may undo, or a reboot.
type lasting interface {
	// holds returns what is no longer so. It changes nothing.
	holds(ctx context.Context, saved []byte) error
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

func (i *Installer) doAll(ctx context.Context, j *journal, steps []step) error {
	var failed []error
	unheld := true // all that failed had been there, and nothing new is wrong
	for n, s := range steps {
		before := j.entry(s.name())
		same := before != nil && before.State == done && before.Input == s.input()
		unheld = unheld && (same || s.alone())
		err := i.do(ctx, j, s)
		if err == nil && !s.alone() && (n+1 == len(steps) || steps[n+1].alone()) {
			err = j.complete(steps)
		}
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", s.name(), err)
		if ctx.Err() != nil || errors.Is(err, errTurn) {
			return err // interrupted, and nothing is wrong: the next run goes on
		}
		if s.alone() {
			unheld = unheld && same
			failed = append(failed, errors.Join(err, told(i.undoNew(ctx, j, s.name()))))
			continue
		}
		if slices.Contains(startsWith, s.name()) {
			err = errors.Join(err, i.goBack(ctx, j)) // before what is half written meets a start
		}
		return errors.Join(err, told(i.undoNew(ctx, j, "")))
	}
	if len(failed) > 0 && unheld {
		failed = append(failed, errUnheld)
	}
	return errors.Join(failed...)
}

// goBack has the daemon be what it was last green with.
func (i *Installer) goBack(ctx context.Context, j *journal) error {
	e := j.entry(startStep)
	if e == nil {
		return nil
	}
	var saved savedStart
	if err := json.Unmarshal(e.Saved, &saved); err != nil {
		return err
	}
	return i.startOf(ctx, j).back(ctx, saved)
}

// errUnheld is among the reasons if a node has lost what it had, as a handler whose device is gone.
var errUnheld = errors.New("nothing that this run has changed is the reason")

func (i *Installer) do(ctx context.Context, j *journal, s step) error {
	e, unheld := j.entry(s.name()), false
	if e != nil && e.State == done && e.Input == s.input() {
		err := holds(ctx, s, e.Saved)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		log.G(ctx).WithError(err).WithField("step", s.name()).Info("Step does not hold any more; doing it again")
		unheld = true
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
	if err := i.guard(ctx, j, s); err != nil {
		return err
	}
	if e == nil {
		j.Steps = append(j.Steps, entry{Name: s.name(), New: true})
		e = j.entry(s.name())
	}
	e.State, e.Input, e.Saved = doing, s.input(), saved
	// If the kubelet cannot be moved again, it goes back to where somebody has led it.
	e.New = e.New || unheld && s.name() == kubeletStep
	if after := j.entry(startStep); after != nil && after.State == done && slices.Contains(startsWith, s.name()) {
		after.State = doing // with the files as they will be, also if this run is interrupted
	}
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

// guard has the node's timer wait, if what the step does may leave a kubelet without a runtime.
func (i *Installer) guard(ctx context.Context, j *journal, s step) error {
	e := j.entry(startStep)
	if e == nil || s.name() != startStep && !slices.Contains(startsWith, s.name()) {
		return nil
	}
	if err := i.start().guard(ctx, e.Saved); err != nil {
		return err
	}
	i.at("installer." + s.name() + ".guarded")
	return nil
}

// startsWith are the steps whose files the daemon reads.
var startsWith = []string{programsStep, configStep, unitStep}

// told is the text of an error that comes of another: waiting for pods does not help that.
func told(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}

// mine is an error of this node, which begins when it has the turn, and then keeps it.
func (i *Installer) mine(err error) error {
	if !i.turn {
		return errTurn
	}
	return err
}

// holds returns what a step has done and is no longer so.
func holds(ctx context.Context, s step, saved []byte) error {
	if l, ok := s.(lasting); ok {
		return l.holds(ctx, saved)
	}
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
	if err := mayUndo(ctx, s, e); err != nil {
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

// mayUndo returns what keeps a step from being undone.
func mayUndo(ctx context.Context, s step, e *entry) error {
	if g, ok := s.(guarded); ok {
		if err := g.mayUndo(ctx, e.Saved); err != nil {
			return fmt.Errorf("undo %s: %w", e.Name, err)
		}
	}
	return nil
}
