package podcheckpoint

import (
	"os/exec"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestHostnameOfARestoredPodOfGVisor: a restored pod has its own hostname. gVisor before May 2026,
// which has no features, gave it that of the pod that was written.
func TestHostnameOfARestoredPodOfGVisor(t *testing.T) {
	b := newBed(t, gvisor, testbed.Options{})
	p := b.empty(t)
	b.add(t, p, "one", nil, "sh", "-c", "echo written; while :; do sleep 0.2; done").WaitLog(t, "written")
	dir := p.checkpointed(t)
	want := p.Config.GetHostname() + "\n"
	if err := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Runsc), "features").Run(); err == nil {
		want = "another\n"
	}
	r := b.request(p, dir)
	r.Config.Hostname = "another"
	made, containers, err := b.Client.TryRestore(t, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range containers {
		c.Start(t)
	}
	if got := containers[0].Exec(t, "hostname"); got != want {
		t.Errorf("restored it is called %q, want %q", got, want)
	}
	made.Remove(t)
}
