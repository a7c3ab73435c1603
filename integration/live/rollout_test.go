package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// uids is how many pods a share is measured with: at 30 and 70 percent, both binaries get some.
const uids = 10

// share runs a sandbox for each of the UIDs. It returns the UIDs of those that run on the
// candidate, with the version of its runc.
func (b *bed) share(t *testing.T, handler string) map[string]string {
	t.Helper()
	next := map[string]string{}
	for i := range uids {
		uid := fmt.Sprintf("uid-%d", i)
		pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler, Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			c.Metadata.Uid, c.Hostname = uid, ""
			c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE // starts faster
		}})
		r, err := b.Client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
		testbed.Must(t, err)
		var info struct{ Binary string }
		testbed.Must(t, json.Unmarshal([]byte(r.GetInfo()["info"]), &info))
		switch info.Binary {
		case "candidate":
			next[uid] = b.runs(t, pod)
		case "stable":
		default:
			t.Errorf("pod %s has the binary %q", uid, info.Binary)
		}
		pod.Remove(t)
	}
	return next
}

// rolloutIs waits until "berth handlers" shows the rollout of a handler in a state.
func (b *bed) rolloutIs(t *testing.T, handler, state string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		var told struct {
			Handlers []struct {
				Name    string
				Rollout struct{ State, Reason string }
			}
		}
		if err := json.Unmarshal([]byte(b.command(t, "handlers", "-o", "json")), &told); err != nil {
			return err
		}
		for _, h := range told.Handlers {
			if h.Name == handler && h.Rollout.State != state {
				return fmt.Errorf("the rollout is in state %q (%s), not %q", h.Rollout.State, h.Rollout.Reason, state)
			}
		}
		return nil
	})
}

// counted returns a counter of one binary of a handler, 0 if the series does not exist.
func (b *bed) counted(t *testing.T, what, handler, binary string) int {
	t.Helper()
	text := b.metric(t, fmt.Sprintf("berth_handler_%s_total{binary=%q,handler=%q}", what, binary, handler))
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	testbed.Must(t, err)
	return n
}

// A rollout runs pods with the same UIDs on the candidate each time, and more pods if its share is
// greater. It ends when an operator promotes or aborts it, and stays ended after a restart. The
// metrics have both binaries.
func TestARolloutFromItsShareToItsEnd(t *testing.T) {
	b := newBed(t)
	stable, next := testbed.Part(t, testbed.RuncOld), filepath.Join(b.Dir, "next")
	copyFile(t, testbed.Part(t, testbed.Runc), next)
	newer := version(t, next)
	restart := func() { b.Kill9(t); b.Start(t); b.waitState(t, "own", "ready") }
	all := func(percent int) {
		t.Helper()
		b.DropIn(t, "own", table("own", stable)+fmt.Sprintf("candidate = { runtime_path = %q, percent = %d }\n", next, percent))
		b.command(t, "reload", "--wait")
		b.rolloutIs(t, "own", "running")
	}

	all(30)
	some := b.share(t, "own")
	if len(some) == 0 || len(some) == uids {
		t.Fatalf("at 30 percent %d of %d pods have the candidate", len(some), uids)
	}
	for uid, is := range some {
		testbed.Same(t, is, newer, "the version of the candidate of pod %s is", uid)
	}
	if pods, others := b.counted(t, "pod_starts", "own", "candidate"), b.counted(t, "pod_starts", "own", "stable"); pods != len(some) || others != uids-len(some) {
		t.Errorf("the metrics count %d pods of the candidate and %d others, want %d and %d", pods, others, len(some), uids-len(some))
	}
	restart()
	if again := b.share(t, "own"); !maps.Equal(again, some) {
		t.Errorf("the candidate ran %v, and after a restart %v", some, again)
	}
	all(70)
	more := b.share(t, "own")
	if len(more) <= len(some) || len(more) == uids {
		t.Errorf("at 70 percent %d of %d pods have the candidate, at 30 percent %d", len(more), uids, len(some))
	}
	for _, uid := range slices.Sorted(maps.Keys(some)) {
		if more[uid] == "" {
			t.Errorf("pod %s had the candidate at 30 percent, but not at 70", uid)
		}
	}

	for _, end := range []struct {
		command, state string
		have           int
	}{{"promote", "promoted", uids}, {"abort", "aborted", 0}} {
		b.command(t, "handler", end.command, "own")
		for _, restarted := range []bool{false, true} {
			if restarted {
				restart()
			}
			b.rolloutIs(t, "own", end.state)
			if got := len(b.share(t, "own")); got != end.have {
				t.Errorf("%s (restarted: %v): %d of %d pods have the candidate", end.state, restarted, got, uids)
			}
		}
	}
}
