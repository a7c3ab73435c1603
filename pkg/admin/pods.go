package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func byAge(a, b Pod) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) }

func (s *service) ListPods(ctx context.Context, req *adminv1.ListPodsRequest) (*adminv1.ListPodsResponse, error) {
	wanted := req.GetHandler()
	all, err := s.o.Pods.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, byAge)
	if wanted != "" {
		all = slices.DeleteFunc(all, func(one Pod) bool { return one.Handler != wanted })
	}
	current := s.offers(ctx, all)
	resp := &adminv1.ListPodsResponse{}
	for _, one := range all {
		resp.Pods = append(resp.Pods, podMessage(one, current))
	}
	if len(resp.Pods) == 0 && wanted != "" {
		if _, err := s.o.Lifecycle.Handler(wanted); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func (s *service) WhereIs(ctx context.Context, req *adminv1.WhereIsRequest) (*adminv1.WhereIsResponse, error) {
	at, err := s.o.Pods.Find(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &adminv1.WhereIsResponse{Sandbox: at.Sandbox, Container: at.Container, Handler: at.Handler, Backend: at.Backend}
	all, err := s.o.Pods.List(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(one Pod) bool { return one.ID == at.Sandbox })
	if i < 0 {
		return nil, fmt.Errorf("sandbox %s is being created or removed; try again: %w", at.Sandbox, errdefs.ErrNotFound)
	}
	resp.Pod = podMessage(all[i], s.offers(ctx, all[i:i+1]))
	return resp, nil
}

func podMessage(p Pod, current offers) *adminv1.Pod {
	return &adminv1.Pod{
		Id: p.ID, Namespace: p.Namespace, Name: p.Name, Uid: p.UID, Handler: p.Handler, Ready: p.Ready,
		CreatedAt: stamp(p.Created), Containers: count(p.Containers), Pin: pinMessage(p.Pin, current),
	}
}

// pinMessage returns nil for a pod without a reported Definition.
func pinMessage(p Pin, current offers) *adminv1.Pin {
	if p.Definition == nil {
		return nil
	}
	reason := current.outdated(p)
	m := &adminv1.Pin{Digest: p.Definition.Digest(), Generation: p.Generation, Outdated: reason != "", OutdatedReason: reason, Snapshotter: p.Definition.Snapshotter}
	for _, b := range p.Binaries {
		m.Binaries = append(m.Binaries, &adminv1.Binary{Path: b.Path, Runs: b.Runs, Digest: b.SHA256, Version: b.Version})
	}
	return m
}

// installedPatience bounds the check of installed programs. The check is fast unless a program is
// new or unreadable.
const installedPatience = 3 * time.Second

// offer is what a new pod of a handler may get: a Definition and its programs, empty if unknown.
type offer struct {
	definition *handler.Definition
	digest     string
	programs   []handler.OwnedBinary
}

// offers are keyed by handler name. A handler has two offers during a rollout.
type offers map[string][]*offer

// offers returns the offers of all configured handlers. Programs are determined only for the
// Definitions of these pods.
func (s *service) offers(ctx context.Context, of []Pod) offers {
	// Programs are compared only between pods with the same Definition.
	wanted := map[string]bool{}
	for _, one := range of {
		if len(one.Pin.Binaries) > 0 && one.Pin.Definition != nil {
			wanted[one.Pin.Definition.Digest()] = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, installedPatience)
	defer cancel()
	var asked sync.WaitGroup
	all := offers{}
	for _, h := range s.o.Lifecycle.Handlers() {
		if !h.Configured {
			continue
		}
		name := h.Definition.Name
		all[name] = []*offer{{definition: h.Definition, digest: h.Digest}}
		if h.Rollout != nil && h.Rollout.State == rollout.Running && h.Definition.Candidate != nil {
			tried := h.Definition.WithCandidate()
			all[name] = append(all[name], &offer{definition: tried, digest: tried.Digest()})
		}
		if h.ProbeError != "" {
			continue // no programs to compare: the probe failed
		}
		for _, o := range all[name] {
			if wanted[o.digest] {
				asked.Go(func() {
					// After an error the programs stay unknown; the next probe reports a lasting
					// cause.
					if programs, err := s.o.Pods.Installed(ctx, o.definition); err == nil {
						o.programs = programs
					}
				})
			}
		}
	}
	asked.Wait()
	return all
}

// outdated returns why a pod differs from a new one; "" if it does not. Pure.
func (all offers) outdated(p Pin) string {
	current, digest := all[p.Definition.Name], p.Definition.Digest()
	if len(current) == 0 {
		return "the handler is no longer configured"
	}
	i := slices.IndexFunc(current, func(o *offer) bool { return o.digest == digest })
	if i < 0 {
		return "the definition of the handler has changed"
	}
	programs := current[i].programs
	if len(p.Binaries) == 0 || len(programs) == 0 || slices.EqualFunc(p.Binaries, programs, sameProgram) {
		return ""
	}
	var names []string
	for i, one := range programs {
		if i >= len(p.Binaries) || !sameProgram(p.Binaries[i], one) {
			names = append(names, strings.TrimSpace(one.Path+" "+one.Version))
		}
	}
	return fmt.Sprintf("a different binary is installed now: %s", strings.Join(names, ", "))
}

func sameProgram(a, b handler.OwnedBinary) bool { return a.SHA256 == b.SHA256 }
