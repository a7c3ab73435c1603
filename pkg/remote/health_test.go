package remote

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

func TestHealthAfterObservations(t *testing.T) {
	ok, late, lost := observation{}, observation{late: "late"}, observation{lost: "gone"}
	unready := observation{unready: "no runtime"}
	for name, c := range map[string]struct {
		seen []observation
		want []Phase
	}{
		"responds":            {[]observation{ok}, []Phase{Ready}},
		"responds, not ready": {[]observation{unready, ok, unready}, []Phase{Connected, Ready, Connected}},
		"goes away":           {[]observation{ok, lost, ok}, []Phase{Ready, Down, Ready}},
		"late once":           {[]observation{ok, late, ok}, []Phase{Ready, Lagging, Ready}},
		"late for long":       {[]observation{ok, late, late, late, late}, []Phase{Ready, Lagging, Lagging, Down, Down}},
		"late from the start": {[]observation{late, late, ok}, []Phase{Down, Down, Ready}},
		"late, then gone":     {[]observation{ok, late, lost, late}, []Phase{Ready, Lagging, Down, Down}},
		"misses are reset":    {[]observation{ok, late, late, ok, late, late}, []Phase{Ready, Lagging, Lagging, Ready, Lagging, Lagging}},
	} {
		h, now := Health{Phase: Down, Reason: "new"}, time.Unix(0, 0)
		for i, o := range c.seen {
			now = now.Add(time.Second)
			before := h
			h = h.after(o, now)
			test.Equal(t, fmt.Sprintf("%s: after %d observations", name, i+1), h.Phase, c.want[i])
			if (h.Reason == "") != (h.Phase == Ready) {
				t.Errorf("%s: %s with the reason %q", name, h.Phase, h.Reason)
			}
			if same := before.Phase == h.Phase; same != h.Since.Equal(before.Since) {
				t.Errorf("%s: since %v, before %v", name, h.Since, before.Since)
			}
		}
	}
}

func TestLostReason(t *testing.T) {
	const noCRI = "the process that accepts connections does not speak gRPC: it is not a CRI daemon, or is stopped"
	for why, want := range map[string]string{
		`connection error: desc = "error reading server preface: http2: frame too large"`:                                noCRI,
		`connection error: desc = "error reading server preface: raw-read unix @->/x: use of closed network connection"`: noCRI,
		`connection error: desc = "transport: failed to write client preface: write unix @->/x: write: broken pipe"`:     noCRI,
		"error reading from server: EOF": "error reading from server: EOF",
		"its own preface is missing":     "its own preface is missing",
	} {
		test.Equal(t, fmt.Sprint(why), lostReason(why), want)
	}
}

// m.asked is closed before the first change of health is reported: the receiver of that change may
// check it, and there may be no further change.
func TestADaemonWasAskedBeforeAnybodyHears(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard := make(chan bool, 2)
	var m *monitor
	m = newMonitor("the CRI daemon", func(context.Context) observation { return observation{} },
		func(context.Context) error { return nil }, func(Health) {
			select {
			case <-m.asked:
				heard <- true
			default:
				heard <- false
			}
		})
	go m.run(ctx)
	if !<-heard {
		t.Error("a change was reported before asked was closed")
	}
}
