package task

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

func TestExitOfACleanedUpTask(t *testing.T) {
	now, then := time.Now(), time.Now().Add(-time.Minute)
	for name, tc := range map[string]struct {
		death         shim.Death
		wasAlive, oom bool
		want          pod.Exit
	}{
		"it was alive":         {shim.Death{Status: 137, At: now}, true, false, pod.Exit{Status: 137, At: now, Why: "the container was killed because its shim died"}},
		"its shim saw the end": {shim.Death{Status: 3, At: then}, false, false, pod.Exit{Status: 3, At: then}},
		"nobody did":           {shim.Death{Status: 137, At: now}, false, false, pod.Exit{Status: 255, At: now, Unknown: true}},
		"the shim's binary is gone": {shim.Death{}, false, true,
			pod.Exit{Status: 255, At: now, OOM: true, Unknown: true}},
	} {
		if got := (remains{}).exit(tc.death, tc.wasAlive, tc.oom, now); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}
