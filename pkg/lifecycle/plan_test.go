package lifecycle

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
)

func TestState(t *testing.T) {
	cordon, drain := &Intent{Kind: Cordon, Reason: "kernel upgrade"}, &Intent{Kind: Drain}
	for name, c := range map[string]struct {
		unable string
		intent *Intent
		phase  handler.Phase
		reason string
	}{
		"no problem":          {"", nil, handler.Ready, ""},
		"probe failed":        {"no binary", nil, handler.NotReady, "no binary"},
		"cordoned":            {"", cordon, handler.Cordoned, "kernel upgrade"},
		"drained":             {"", drain, handler.Draining, "set by an operator"},
		"cordoned and broken": {"no binary", cordon, handler.Cordoned, "kernel upgrade; also not ready: no binary"},
	} {
		t.Run(name, func(t *testing.T) {
			got := state(c.unable, c.intent)
			if got.Phase != c.phase || !strings.Contains(got.Reason, c.reason) || (got.Reason == "") != (c.phase == handler.Ready) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
