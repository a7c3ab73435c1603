package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// reloadTimeout bounds the reload after a drop-in was written. The reload continues if the caller
// disconnects: a change must be completed or rolled back.
const reloadTimeout = 2 * time.Minute

func (s *service) RegisterHandler(ctx context.Context, req *adminv1.RegisterHandlerRequest) (*adminv1.RegisterHandlerResponse, error) {
	name := req.GetName()
	if err := handler.ValidName(name); err != nil {
		return nil, err
	}
	if err := s.register(ctx, name, settingsOf(req.GetSettings())); err != nil {
		return nil, err
	}
	h, err := s.waitProbed(ctx, name)
	return &adminv1.RegisterHandlerResponse{Handler: h, File: s.dropIns.file(name)}, err
}

func (s *service) register(ctx context.Context, name string, settings []dropin.Setting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, err := s.o.Lifecycle.Handler(name); err == nil && known.Configured && !discovered(known) {
		return fmt.Errorf("handler %q already exists, at %s; change it by \"berth handler edit %s\": %w",
			name, known.Definition.Origin, name, errdefs.ErrAlreadyExists)
	}
	if err := s.dropIns.checkFree(name); err != nil {
		return err
	}
	who, _ := callerOf(ctx)
	text, err := s.dropIns.text(name, who.uid, settings)
	if err != nil {
		return err
	}
	return s.put(ctx, name, text, nil)
}

// waitProbed waits until a new handler's probe has finished: on a busy node the probe takes longer
// than a reload waits. mu is not held, so that a hanging runtime delays no other registration.
func (s *service) waitProbed(ctx context.Context, name string) (*adminv1.Handler, error) {
	if h, err := s.o.Lifecycle.Handler(name); err == nil && h.State.Reason == rollout.NotProbedYet {
		_, _ = s.o.Lifecycle.Probe(ctx, name, probe.Ask) // the result is in the handler's state
	}
	return s.changed(name, nil)
}

// discovered reports whether the handler is in no file, but was found on the node. A file with a
// handler of that name replaces it.
func discovered(h lifecycle.Handler) bool {
	return strings.HasPrefix(h.Definition.Origin, "discovered ")
}

func (s *service) UpdateHandler(ctx context.Context, req *adminv1.UpdateHandlerRequest) (*adminv1.UpdateHandlerResponse, error) {
	name := req.GetName()
	if err := s.update(ctx, name, req); err != nil {
		return nil, err
	}
	h, err := s.waitProbed(ctx, name)
	return &adminv1.UpdateHandlerResponse{Handler: h, File: s.dropIns.file(name)}, err
}

func (s *service) update(ctx context.Context, name string, req *adminv1.UpdateHandlerRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, err := s.ownDropIn(name)
	if err != nil {
		return err
	}
	settings, err := dropin.Read(before, name)
	if err != nil {
		return fmt.Errorf("%s: %w", s.dropIns.file(name), err)
	}
	if settings, err = merged(settings, settingsOf(req.GetSet()), req.GetUnset()); err != nil {
		return err
	}
	who, _ := callerOf(ctx)
	text, err := s.dropIns.text(name, who.uid, settings)
	if err != nil {
		return err
	}
	return s.put(ctx, name, text, before)
}

func (s *service) RemoveHandler(ctx context.Context, req *adminv1.RemoveHandlerRequest) (*adminv1.RemoveHandlerResponse, error) {
	name := req.GetName()
	s.mu.Lock()
	defer s.mu.Unlock()
	before, err := s.ownDropIn(name)
	if err != nil {
		return nil, err
	}
	if err := s.put(ctx, name, nil, before); err != nil {
		return nil, err
	}
	resp := &adminv1.RemoveHandlerResponse{File: s.dropIns.file(name)}
	if h, err := s.o.Lifecycle.Handler(name); err == nil {
		resp.Pods = count(h.Pods)
	}
	return resp, nil
}

// ownDropIn returns the text of the drop-in of a handler registered by this API.
func (s *service) ownDropIn(name string) ([]byte, error) {
	h, err := s.o.Lifecycle.Handler(name)
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
	case !strings.HasPrefix(origin, s.dropIns.file(name)+":"):
		return nil, elsewhere(name, origin)
	}
	text, err := s.dropIns.read(name)
	if errdefs.IsFailedPrecondition(err) {
		return nil, elsewhere(name, origin)
	}
	return text, err
}

func elsewhere(name, origin string) error {
	return fmt.Errorf("handler %q was not added by \"berth handler add\"; edit %s, then \"berth reload --wait\": %w",
		name, origin, errdefs.ErrFailedPrecondition)
}

// put writes a file, or removes it if text is nil, and reloads. It first checks that the
// configuration would be accepted. If the reload still rejects it, because something else changed,
// put restores before (nil means no file).
func (s *service) put(ctx context.Context, name string, text, before []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reloadTimeout)
	defer cancel()
	if err := s.o.Files.Check(ctx, s.dropIns.file(name), text); err != nil {
		return refused(err)
	}
	if err := s.dropIns.write(name, text); err != nil {
		return errors.Join(err, s.dropIns.write(name, before))
	}
	_, err := s.o.Lifecycle.Reload(ctx, lifecycle.TriggerAdmin)
	if err == nil {
		return nil
	}
	if undo := s.dropIns.write(name, before); undo != nil {
		log.G(ctx).WithError(undo).WithField("file", s.dropIns.file(name)).Error("Failed to roll back rejected drop-in")
		return errors.Join(err, fmt.Errorf("and the rollback failed, do it by hand: %w", undo))
	}
	// After the rollback, another reload makes the log and the status describe the files again.
	if _, again := s.o.Lifecycle.Reload(ctx, lifecycle.TriggerAdmin); again != nil {
		log.G(ctx).WithError(again).Warn("Configuration is still rejected after the rollback of a drop-in")
	}
	return refused(err)
}

func refused(err error) error {
	return fmt.Errorf("nothing was changed: the configuration would be rejected: %w", err)
}

func settingsOf(messages []*adminv1.Setting) []dropin.Setting {
	all := each(messages, func(m *adminv1.Setting) dropin.Setting { return dropin.Setting{Key: m.GetKey(), Value: m.GetValue()} })
	slices.SortFunc(all, func(a, b dropin.Setting) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// merged returns a table with some keys set and others removed. Pure.
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
