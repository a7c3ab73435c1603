package lifecycle

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
)

func TestNextState(t *testing.T) {
	cordon, drain := &Intent{Kind: Cordon, Reason: "kernel upgrade"}, &Intent{Kind: Drain}
	for name, c := range map[string]struct {
		facts  facts
		phase  handler.Phase
		reason string
	}{
		"fine":                   {facts{configured: true, probed: true}, handler.Ready, ""},
		"not probed yet":         {facts{configured: true}, handler.NotReady, rollout.NotProbedYet},
		"probe failed":           {facts{configured: true, probed: true, failure: "no binary"}, handler.NotReady, "no binary"},
		"file cannot be read":    {facts{configured: true, broken: "a.toml:1: bad"}, handler.NotReady, "a.toml:1: bad"},
		"cordoned":               {facts{configured: true, probed: true, intent: cordon}, handler.Cordoned, "kernel upgrade"},
		"drained":                {facts{configured: true, probed: true, intent: drain}, handler.Draining, "set by an operator"},
		"cordoned and broken":    {facts{configured: true, probed: true, failure: "no binary", intent: cordon}, handler.Cordoned, "kernel upgrade; also not ready: no binary"},
		"gone":                   {facts{}, handler.Draining, "no longer configured"},
		"gone, was cordoned":     {facts{intent: cordon}, handler.Draining, "no longer configured"},
		"gone, does not work":    {facts{probed: true, failure: "no binary"}, handler.Draining, "no longer configured"},
		"cordoned, not probed":   {facts{configured: true, intent: cordon}, handler.Cordoned, rollout.NotProbedYet},
		"cordoned, file is lost": {facts{configured: true, broken: "bad", intent: cordon}, handler.Cordoned, "bad"},
	} {
		t.Run(name, func(t *testing.T) {
			got := next(c.facts)
			if got.Phase != c.phase || !strings.Contains(got.Reason, c.reason) || (got.Reason == "") != (c.phase == handler.Ready) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
