package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// result is what "berth check -o json" prints.
type result struct {
	Handlers []struct {
		Name    string `json:"name"`
		Default bool   `json:"default"`
	} `json:"handlers"`
	Problems []string `json:"problems"`
	Lacks    []string `json:"lacks"`
	Verdict  string   `json:"verdict"`
}

// check runs "berth check" on the daemon's files, for JSON and for text. Both runs must exit with
// status want and have the same verdict.
func (n *node) check(t *testing.T, want int) (j result, stderr string) {
	t.Helper()
	files := []string{"check", "-c", n.ConfigFile, "--drop-in-dir", filepath.Join(n.Dir, "conf.d"), "--vendor-dir", filepath.Join(n.Dir, "vendor.d")}
	out, _ := n.berth(t, want, append(files, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &j); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stdout, stderr := n.berth(t, want, files...)
	if text := stdout + stderr; !strings.HasSuffix(text, "\n"+j.Verdict+"\n") {
		t.Errorf("the last line is not %q:\n%s", j.Verdict, text)
	}
	return j, stderr
}

// TestCheckJudgesAsTheDaemon compares "berth check" with the daemon: exactly the handlers that
// the daemon reports as not ready, and the candidates that cannot run, are in the check's lacks. A
// missing binary is not a mistake of the files.
func TestCheckJudgesAsTheDaemon(t *testing.T) {
	n := newNode(t)
	runc, shim := testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.RuncShim)
	if j, _ := n.check(t, 0); j.Verdict != "config: ok" {
		t.Errorf("the verdict on a working handler is %q", j.Verdict)
	}
	tables := map[string]string{
		"good":            fmt.Sprintf("runtime_path = %q\n", runc),
		"gone":            fmt.Sprintf("runtime_path = %q\n", filepath.Join(n.Dir, "gone")),
		"no-program":      "runtime_path = \"/etc/hostname\"\n",
		"no-runtime":      "runtime_path = \"/bin/false\"\n",
		"any-program":     "runtime_path = \"/bin/true\"\n",
		"no-spec":         fmt.Sprintf("runtime_path = %q\nbase_runtime_spec = \"/nowhere/spec.json\"\n", runc),
		"no-device":       fmt.Sprintf("runtime_path = %q\nrequired_devices = [\"/dev/berth-none\"]\n", runc),
		"drives-nothing":  fmt.Sprintf("runtime_path = %q\nruntime_type = \"shim\"\noptions.BinaryName = \"/nowhere/runc\"\n", shim),
		"no-daemon":       fmt.Sprintf("endpoint = \"unix://%s\"\n", filepath.Join(n.Dir, "away.sock")),
		"no-snapshotter":  fmt.Sprintf("runtime_path = %q\nsnapshotter = \"away\"\n", runc),
		"candidate-gone":  fmt.Sprintf("runtime_path = %q\ncandidate = { runtime_path = %q, percent = 10 }\n", runc, filepath.Join(n.Dir, "next")),
		"candidate-false": fmt.Sprintf("runtime_path = %q\ncandidate = { runtime_path = \"/bin/false\", percent = 10 }\n", runc),
	}
	text := fmt.Sprintf("[snapshotters.away]\naddress = %q\n", filepath.Join(n.Dir, "away.sock"))
	for name, table := range tables {
		text += "[runtimes." + name + "]\n" + table
	}
	n.DropIn(t, "60-lacks", text)
	n.Restart(t)

	j, stderr := n.check(t, 3)
	if len(j.Problems) > 0 || !strings.HasPrefix(j.Verdict, "config: ") || !strings.Contains(j.Verdict, fmt.Sprintf("%d", len(j.Lacks))) {
		t.Errorf("the verdict is %q, the mistakes are %q, want none", j.Verdict, j.Problems)
	}
	about := func(start string) string {
		i := slices.IndexFunc(j.Lacks, func(l string) bool { return strings.HasPrefix(l, start+": ") })
		if i < 0 {
			return ""
		}
		has(t, stderr, j.Lacks[i])
		return j.Lacks[i]
	}
	unready := 0
	for name := range tables {
		h, said := n.handler(t, name), about(fmt.Sprintf("handler %q", name))
		reason, _ := h["reason"].(string)
		if (h["state"] == "STATE_READY") != (said == "") {
			t.Errorf("the daemon reports %s as %s (%s), check reports %q", name, h["state"], reason, said)
		}
		if said != "" {
			unready++
		}
		if _, machine := map[string]bool{"no-daemon": true, "no-snapshotter": true}[name]; !machine && !strings.Contains(said, reason) {
			t.Errorf("check reports %q for %s, the daemon %q", said, name, reason)
		}
		rollout, _ := h["rollout"].(map[string]any)
		said = about(fmt.Sprintf("candidate of handler %q", name))
		if (rollout == nil) != (said == "") || rollout != nil && !strings.Contains(said, rollout["reason"].(string)) {
			t.Errorf("the rollout of %s is %v, check reports %q", name, rollout, said)
		}
	}
	if unready != 9 {
		t.Errorf("%d handlers are not ready, want 9", unready)
	}

	n.DropIn(t, "60-lacks", "[runtimes.good]\nruntime_pat = \"/bin/true\"\n[log]\nlevel = 1\n")
	n.berth(t, 2, "reload", "--wait")
	if j, _ := n.check(t, 2); j.Verdict != "config: 2 mistakes" || len(j.Problems) != 2 {
		t.Errorf("with two mistakes the verdict is %q, the mistakes are %q", j.Verdict, j.Problems)
	}
	testbed.Must(t, os.Remove(n.DropInPath("60-lacks")))
	n.check(t, 0)
}
