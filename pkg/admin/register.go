package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config/dropin"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// reloadTimeout bounds the wait for a reload whose files are ours. It goes on
// when the caller leaves: half of a change must not stay.
const reloadTimeout = 2 * time.Minute

// registrations writes, changes and removes drop-ins.
type registrations struct {
	view
	files Files
	// mu is held from before a file is read until its change is in force or
	// taken back.
	mu *sync.Mutex
}

func (r registrations) RegisterHandler(ctx context.Context, req *adminv1.RegisterHandlerRequest) (*adminv1.RegisterHandlerResponse, error) {
	name := req.GetName()
	if err := handler.ValidName(name); err != nil {
		return nil, err
	}
	if err := r.register(ctx, name, settingsOf(req.GetSettings())); err != nil {
		return nil, err
	}
	h, err := r.probed(ctx, name)
	return &adminv1.RegisterHandlerResponse{Handler: h, File: r.dropIns.file(name)}, err
}

func (r registrations) register(ctx context.Context, name string, settings []dropin.Setting) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, err := r.life.Handler(name); err == nil && known.Configured && !discovered(known) {
		return fmt.Errorf("handler %q already exists, at %s; change it by \"berth handler edit %s\": %w",
			name, known.Definition.Origin, name, errdefs.ErrAlreadyExists)
	}
	if err := r.dropIns.free(name); err != nil {
		return err
	}
	text, err := r.text(ctx, name, settings)
	if err != nil {
		return err
	}
	return r.put(ctx, name, text, nil)
}

// probed is a handler whose probe has ended: on a busy node it takes longer than a reload waits.
// mu is not held meanwhile: a runtime that hangs delays no other registration.
func (r registrations) probed(ctx context.Context, name string) (*adminv1.Handler, error) {
	if h, err := r.life.Handler(name); err == nil && h.State.Reason == rollout.NotProbedYet {
		_, _ = r.life.Probe(ctx, name, probe.Ask) // what it finds is the handler's state
	}
	return r.one(name)
}

// discovered says whether no file has the handler. One that a file has replaces it.
func discovered(h lifecycle.Handler) bool {
	return strings.HasPrefix(h.Definition.Origin, "discovered ")
}

func (r registrations) UpdateHandler(ctx context.Context, req *adminv1.UpdateHandlerRequest) (*adminv1.UpdateHandlerResponse, error) {
	name := req.GetName()
	if err := r.update(ctx, name, req); err != nil {
		return nil, err
	}
	h, err := r.probed(ctx, name)
	return &adminv1.UpdateHandlerResponse{Handler: h, File: r.dropIns.file(name)}, err
}

func (r registrations) update(ctx context.Context, name string, req *adminv1.UpdateHandlerRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, err := r.ours(name)
	if err != nil {
		return err
	}
	settings, err := dropin.Read(before, name)
	if err != nil {
		return fmt.Errorf("%s: %w", r.dropIns.file(name), err)
	}
	if settings, err = merged(settings, settingsOf(req.GetSet()), req.GetUnset()); err != nil {
		return err
	}
	text, err := r.text(ctx, name, settings)
	if err != nil {
		return err
	}
	return r.put(ctx, name, text, before)
}

func (r registrations) RemoveHandler(ctx context.Context, req *adminv1.RemoveHandlerRequest) (*adminv1.RemoveHandlerResponse, error) {
	name := req.GetName()
	r.mu.Lock()
	defer r.mu.Unlock()
	before, err := r.ours(name)
	if err != nil {
		return nil, err
	}
	if err := r.put(ctx, name, nil, before); err != nil {
		return nil, err
	}
	resp := &adminv1.RemoveHandlerResponse{File: r.dropIns.file(name)}
	if h, err := r.life.Handler(name); err == nil {
		resp.Pods = count(h.LivePods)
	}
	return resp, nil
}

// ours is the text of the drop-in of a handler that this API registered.
func (r registrations) ours(name string) ([]byte, error) {
	h, err := r.life.Handler(name)
	if err != nil {
		return nil, err
	}
	origin := h.Definition.Origin
	switch {
	case !h.Configured:
		return nil, fmt.Errorf("handler %q is already removed; it is listed until its last pod is gone: %w", name, errdefs.ErrFailedPrecondition)
	case discovered(h):
		return nil, fmt.Errorf("handler %q is not in a file, it was %s; to change it, first add it by \"berth handler add %s --path %s\"; to remove it, uninstall %s: %w",
			name, origin, name, h.Definition.Path, h.Definition.Path, errdefs.ErrFailedPrecondition)
	case !strings.HasPrefix(origin, r.dropIns.file(name)+":"):
		return nil, elsewhere(name, origin)
	}
	text, err := r.dropIns.read(name)
	if errdefs.IsFailedPrecondition(err) {
		return nil, elsewhere(name, origin)
	}
	return text, err
}

func elsewhere(name, origin string) error {
	return fmt.Errorf("handler %q was not added by \"berth handler add\"; edit %s, then \"berth reload --wait\": %w",
		name, origin, errdefs.ErrFailedPrecondition)
}

func (r registrations) text(ctx context.Context, name string, settings []dropin.Setting) ([]byte, error) {
	who, _ := callerOf(ctx)
	return r.dropIns.text(name, who.uid, time.Now(), settings)
}

// put writes a file, or removes it if text is nil, and reloads. What would be
// refused is not written. If the reload is refused all the same, for something
// else has changed, what was there before is put back (nil is nothing).
func (r registrations) put(ctx context.Context, name string, text, before []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reloadTimeout)
	defer cancel()
	if err := r.files.Check(ctx, r.dropIns.file(name), text); err != nil {
		return refused(err)
	}
	if err := r.place(name, text); err != nil {
		return errors.Join(err, r.place(name, before))
	}
	_, err := r.life.Reload(ctx, lifecycle.TriggerAdmin)
	if err == nil {
		return nil
	}
	if undo := r.place(name, before); undo != nil {
		log.G(ctx).WithError(undo).WithField("file", r.dropIns.file(name)).Error("Failed to roll back rejected drop-in")
		return errors.Join(err, fmt.Errorf("and the rollback failed, do it by hand: %w", undo))
	}
	// What was refused is no more; the last word of the log and of the status is
	// about what the files say.
	if _, again := r.life.Reload(ctx, lifecycle.TriggerAdmin); again != nil {
		log.G(ctx).WithError(again).Warn("Configuration is still rejected after the rollback of a drop-in")
	}
	return refused(err)
}

func refused(err error) error {
	return fmt.Errorf("nothing was changed: the configuration would be rejected: %w", err)
}

func (r registrations) place(name string, text []byte) error {
	if text == nil {
		return r.dropIns.remove(name)
	}
	return r.dropIns.write(name, text)
}

func settingsOf(messages []*adminv1.Setting) []dropin.Setting {
	all := make([]dropin.Setting, len(messages))
	for i, m := range messages {
		all[i] = dropin.Setting{Key: m.GetKey(), Value: m.GetValue()}
	}
	slices.SortFunc(all, func(a, b dropin.Setting) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// merged is a table with some keys set and others taken out. Pure.
func merged(table, set []dropin.Setting, unset []string) ([]dropin.Setting, error) {
	values := map[string]string{}
	for _, s := range table {
		values[s.Key] = s.Value
	}
	for _, key := range unset {
		before := slices.Sorted(maps.Keys(values))
		maps.DeleteFunc(values, func(k, _ string) bool { return k == key || strings.HasPrefix(k, key+".") })
		if len(values) == len(before) {
			return nil, fmt.Errorf("the handler has no key %q; it has %s: %w", key, strings.Join(before, ", "), errdefs.ErrInvalidArgument)
		}
	}
	for _, s := range set {
		values[s.Key] = s.Value
	}
	all := make([]dropin.Setting, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		all = append(all, dropin.Setting{Key: key, Value: values[key]})
	}
	return all, nil
}
