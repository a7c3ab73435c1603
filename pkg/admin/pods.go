package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/lifecycle"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// pods answers what pods there are and whose they are.
type pods struct {
	pods Pods
	life Lifecycle
}

func byAge(a, b Pod) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) }

// ListPods implements adminv1.AdminServer.
func (p pods) ListPods(ctx context.Context, req *adminv1.ListPodsRequest) (*adminv1.ListPodsResponse, error) {
	wanted := req.GetHandler()
	all, err := p.pods.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, byAge)
	digests := p.digests()
	resp := &adminv1.ListPodsResponse{}
	for _, one := range all {
		if wanted == "" || one.Handler == wanted {
			resp.Pods = append(resp.Pods, podMessage(one, digests))
		}
	}
	if len(resp.Pods) == 0 && wanted != "" {
		if _, err := p.life.Handler(wanted); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// WhereIs implements adminv1.AdminServer.
func (p pods) WhereIs(ctx context.Context, req *adminv1.WhereIsRequest) (*adminv1.WhereIsResponse, error) {
	at, err := p.pods.Find(req.GetId())
	if err != nil {
		return nil, err
	}
	resp := &adminv1.WhereIsResponse{Sandbox: at.Sandbox, Container: at.Container, Handler: at.Handler, Backend: at.Backend}
	all, err := p.pods.List(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(one Pod) bool { return one.ID == at.Sandbox })
	if i < 0 {
		return nil, fmt.Errorf("sandbox %s is being made or removed; ask again: %w", at.Sandbox, errdefs.ErrNotFound)
	}
	resp.Pod = podMessage(all[i], p.digests())
	return resp, nil
}

// digests are those of the handlers as new pods get them: some of them get the
// next binary while it is on trial.
func (p pods) digests() map[string][]string {
	digests := map[string][]string{}
	for _, h := range p.life.Handlers() {
		if !h.Configured {
			continue
		}
		current := []string{h.Digest}
		if h.Trial != nil && h.Trial.State == lifecycle.TrialRunning && h.Definition.Next != nil {
			current = append(current, h.Definition.WithNext().Digest())
		}
		digests[h.Definition.Name] = current
	}
	return digests
}

func podMessage(p Pod, digests map[string][]string) *adminv1.Pod {
	return &adminv1.Pod{
		Id: p.ID, Namespace: p.Namespace, Name: p.Name, Uid: p.UID, Handler: p.Handler, Ready: p.Ready,
		CreatedAt: stamp(p.Created), Containers: count(p.Containers), Pin: pinMessage(p.Pin, digests),
	}
}

// pinMessage is nil for a pod of a backend that does not tell.
func pinMessage(p Pin, digests map[string][]string) *adminv1.Pin {
	d := p.Definition
	if d == nil {
		return nil
	}
	digest := d.Digest()
	m := &adminv1.Pin{Digest: digest, Generation: p.Generation, Outdated: !slices.Contains(digests[d.Name], digest)}
	for _, b := range p.Binaries {
		m.Binaries = append(m.Binaries, &adminv1.Binary{Path: b.Path, Runs: b.Runs, Digest: b.SHA256, Version: b.Version})
	}
	return m
}
