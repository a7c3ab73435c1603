package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestCopiesOfWhatMayBeNeeded looks at the copies that are kept for new pods when
// others are collected: those of candidates, and of handlers that cannot take
// pods at the moment, are not among what goes.
func TestCopiesOfWhatMayBeNeeded(t *testing.T) {
	runc := testbed.Part(t, testbed.Runc)
	next, idle, lame, gone := newScripted(t), newScripted(t), newScripted(t), newScripted(t)
	stay := fmt.Sprintf(`
default_runtime = "runc"
[runtimes.runc]
runtime_path = %[1]q
candidate = { runtime_path = %[2]q, percent = 1 }
[runtimes.idle]
runtime_path = %[1]q
candidate = { runtime_path = %[3]q, percent = 0 }
[runtimes.lame]
runtime_path = %[4]q
required_devices = ["/dev/no-such-device"]
`, runc, next.Path, idle.Path, lame.Path)
	b := newBed(t, testbed.Options{Config: stay + fmt.Sprintf("[runtimes.gone]\nruntime_path = %q\n", gone.Path)})
	atRest := b.Rest(t)
	look := func(what string, kept bool, runtimes ...string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			all := b.kept(t)
			for _, path := range runtimes {
				if name := "runtime-" + digest(t, path)[:16]; contains(all, []string{name}) != kept {
					return fmt.Errorf("%s: %s of %s is kept: %v", what, name, path, !kept)
				}
			}
			return nil
		})
	}
	b.Restart(t) // nothing is known of what an earlier daemon copied
	look("at first", true, runc, next.Path, idle.Path, lame.Path, gone.Path)
	b.Client.RunPod(t, testbed.PodSpec{Handler: "gone", Image: b.Image, Command: []string{"sleep", "1000"}})
	b.reload(t, stay)
	b.NothingLeft(t, atRest) // the last pod is gone, and its runtime's copy with it
	look("its handler and its pod are gone", false, gone.Path)
	look("the others", true, runc, next.Path, idle.Path, lame.Path)
}
