package podcheckpoint

import (
	"os/exec"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestHostnameOfARestoredPodOfGVisor: a restored pod has the hostname of its request. gVisor before
// May 2026, which has no command `runsc features`, keeps the hostname of the checkpointed pod.
func TestHostnameOfARestoredPodOfGVisor(t *testing.T) {
	b := newBed(t, testbed.Options{})
	p := b.run(t)
	b.add(t, p, "one", nil, "sh", "-c", "echo written; while :; do sleep 0.2; done").WaitLog(t, "written")
	dir := p.checkpointed(t)
	want := p.Config.GetHostname() + "\n"
	if err := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Runsc), "features").Run(); err == nil {
		want = "another\n"
	}
	r := b.request(p, dir)
	r.Config.Hostname = "another"
	again := b.created(t, p, r)
	again.members[0].Start(t)
	testbed.Same(t, again.members[0].Exec(t, "hostname"), want, "the hostname of the restored pod is")
	again.Remove(t)
}
