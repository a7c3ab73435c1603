package admin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func (s *service) Reload(ctx context.Context, req *adminv1.ReloadRequest) (*adminv1.ReloadResponse, error) {
	if req.GetNoWait() {
		s.o.Lifecycle.Request(lifecycle.TriggerAdmin)
		now := s.o.Lifecycle.Current()
		return &adminv1.ReloadResponse{Generation: now.Generation, Digest: now.Digest}, nil
	}
	o, err := s.o.Lifecycle.Reload(ctx, lifecycle.TriggerAdmin)
	if err != nil && o.Error == nil {
		return nil, err // the reload did not run
	}
	resp := &adminv1.ReloadResponse{
		Generation: o.Generation, Digest: o.Digest, Accepted: o.Error == nil, Took: durationpb.New(o.Took),
		Changes: changes(o), NeedsRestart: each(o.Diff.Pending, config.Change.String),
	}
	// The handlers are read again, not taken from o: the file watcher may have applied the change
	// first.
	for _, h := range s.o.Lifecycle.Handlers() {
		if h.Configured && h.State.Phase == handler.NotReady {
			resp.NotReady = append(resp.NotReady, h.Definition.Name)
		}
	}
	if resp.Problems = problemsOf(o.Error); resp.Accepted {
		resp.Problems = each(s.o.Lifecycle.Current().Config.Problems, problemMessage)
	}
	return resp, nil
}

func problemsOf(err error) []*adminv1.Problem {
	var problems config.Problems
	switch {
	case err == nil:
		return nil
	case errors.As(err, &problems):
		return each(problems, problemMessage)
	}
	return []*adminv1.Problem{plainProblem(err.Error())}
}

func changes(o lifecycle.Outcome) []string {
	var lines []string
	for _, group := range []struct {
		names []string
		what  string
	}{{o.Diff.Added, "added"}, {o.Diff.Changed, "changed"}, {o.Diff.Removed, "removed"}} {
		for _, name := range group.names {
			line := fmt.Sprintf("handler %s: %s", name, group.what)
			if reason := o.NotReady[name]; reason != "" {
				line += ", and it accepts no pods: " + reason
			}
			lines = append(lines, line)
		}
	}
	if o.Diff.DefaultFrom != o.Diff.DefaultTo {
		lines = append(lines, fmt.Sprintf("default handler: %s, was %s", o.Diff.DefaultTo, o.Diff.DefaultFrom))
	}
	return append(lines, each(o.Diff.Live, config.Change.String)...)
}

func (s *service) GetConfig(ctx context.Context, req *adminv1.GetConfigRequest) (*adminv1.GetConfigResponse, error) {
	cfg := s.o.Lifecycle.Current().Config
	if req.GetFiles() {
		var err error
		if cfg, err = s.o.Files.Read(ctx); err != nil {
			return nil, err
		}
	}
	settings, err := cfg.Settings()
	if err != nil {
		return nil, err
	}
	return &adminv1.GetConfigResponse{
		Settings: each(settings, settingMessage), Sources: cfg.Sources, Problems: each(cfg.Problems, problemMessage),
	}, nil
}
