package admin

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berth-cri/berth/pkg/observe"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// starts answers why pods were slow.
type starts struct {
	life  Lifecycle
	known *observe.Starts
}

func (s starts) ListStarts(_ context.Context, req *adminv1.ListStartsRequest) (*adminv1.ListStartsResponse, error) {
	resp := &adminv1.ListStartsResponse{}
	wanted := req.GetHandler()
	for _, p := range s.known.Recent() {
		if wanted == "" || p.Handler == wanted {
			resp.Starts = append(resp.Starts, startMessage(p))
		}
	}
	if len(resp.Starts) == 0 && wanted != "" {
		if _, err := s.life.Handler(wanted); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

func startMessage(p observe.PodStart) *adminv1.PodStart {
	m := &adminv1.PodStart{
		Namespace: p.Namespace, Name: p.Name, Uid: p.UID, Sandbox: p.Sandbox, Handler: p.Handler,
		BeganAt: stamp(p.Began), Took: durationpb.New(p.Took()),
	}
	for _, c := range p.Calls {
		call := &adminv1.StartCall{Rpc: c.RPC, Of: c.Of, BeganAt: stamp(c.Began), Took: durationpb.New(c.Took), Code: c.Code.String()}
		for _, s := range c.Steps {
			call.Steps = append(call.Steps, &adminv1.StartStep{Name: s.Name, Took: durationpb.New(s.Took)})
		}
		m.Calls = append(m.Calls, call)
	}
	return m
}
