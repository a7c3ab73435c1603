package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// TestProbesAreWaitedFor: a command that requests a self-check pod waits for the result, even if
// the runtime needs longer to start a pod than a reload would wait.
func TestProbesAreWaitedFor(t *testing.T) {
	n := newNode(t)
	slow, dir := filepath.Join(n.Dir, "slow"), filepath.Join(n.Dir, "slow.d")
	for path, text := range map[string]string{
		slow: fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' run '*) [ ! -e %[1]s/sleep ] || sleep 6; [ ! -e %[1]s/fail ] || exit 1;; esac\nexec %[2]s \"$@\"\n",
			dir, testbed.Part(t, testbed.Runc)),
		filepath.Join(dir, "sleep"): "",
	} {
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	n.berth(t, 0, "handler", "add", "slow", "--path", slow)
	if k := n.told(t, "slow", "--self-check")["slow"].Of(capability.Exec); k.Source != capability.Ran {
		t.Errorf("after a self-check pod that was slow to start, exec is %+v", k)
	}
	_, stderr := n.berth(t, 3, "handler", "probe", "slow", "--self-check", "--timeout", "1s")
	has(t, stderr, `the self-check pod of handler "slow" did not finish in time`)
	n.berth(t, 0, "handler", "probe", "slow", "--self-check") // joins the running self-check, unless that has finished
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "fail"), nil, 0o600))
	_, stderr = n.berth(t, 3, "handler", "probe", "slow", "--self-check")
	has(t, stderr, `handler "slow" cannot run pods: the self-check pod failed at its start: `)
	_, stderr = n.berth(t, 3, "capabilities", "slow", "--self-check")
	has(t, stderr, `handler "slow" cannot run pods: the self-check pod failed at its start: `)
}
