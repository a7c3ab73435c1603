package beside

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// podman runs podman as root, with its state in directories of the test.
type podman struct{ dir string }

func newPodman(t *testing.T) *podman {
	t.Helper()
	p := &podman{dir: t.TempDir()}
	// Without these, podman would use the host's networks and locks.
	run(t, "mount", "-t", "tmpfs", "podman", "/etc/cni")
	settings := "[engine]\nlock_type = \"file\"\nevents_logger = \"none\"\n[containers]\nlog_driver = \"k8s-file\"\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n"
	testbed.Must(t, os.WriteFile(filepath.Join(p.dir, "containers.conf"), []byte(settings), 0o600))
	t.Cleanup(func() { _ = p.command("system", "reset", "--force").Run() })
	return p
}

func (p *podman) command(args ...string) *exec.Cmd {
	global := []string{"--root", filepath.Join(p.dir, "root"), "--runroot", "/run/podman-test", "--tmpdir", "/run/podman-tmp", "--cgroup-manager", "cgroupfs"}
	cmd := exec.Command("podman", append(global, args...)...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(p.dir, "containers.conf"))
	return cmd
}

func (p *podman) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("podman %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestPodman has podman run, remove and reset its containers on a node with pods of berth.
func TestPodman(t *testing.T) {
	needForeign(t, "podman", "podman", "conmon", "crun")
	onNode(t, nil, func(t *testing.T) {
		p := newPodman(t)
		b := newBed(t)
		const ours, theirPort = 15_000, "25000"
		before, stays := b.pod(t), b.pod(t, hostPort(ours))
		serve := func(name string) {
			t.Helper()
			p.run(t, "run", "--detach", "--pull", "never", "--name", name, "--network", "theirs", "--publish", theirPort+":8080", b.Image,
				"sh", "-c", "echo mapped > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")
		}
		p.run(t, "pull", "--quiet", "--tls-verify=false", b.Image)
		p.run(t, "network", "create", "theirs")
		serve("served")
		address := p.run(t, "inspect", "--format", "{{.NetworkSettings.Networks.theirs.IPAddress}}", "served")
		unharmed := func(when string) {
			t.Helper()
			p.run(t, "exec", "served", "true")
			if now := p.run(t, "inspect", "--format", "{{.State.Status}} {{.NetworkSettings.Networks.theirs.IPAddress}}", "served"); now != "running "+address {
				t.Errorf("%s podman's container is %q, want running %s", when, now, address)
			}
			b.answers(t, 25_000)
			if !strings.Contains(natRules(t), address) {
				t.Errorf("%s there is no masquerading for podman's container", when)
			}
		}
		alive := func() {
			t.Helper()
			stays.Container.Exec(t, "true")
			b.answers(t, ours)
		}
		unharmed("at first")
		alive()
		before.Stop(t)
		before.Remove(t)
		after := b.pod(t)
		unharmed("after berth stopped and started pods")
		b.Kill9(t)
		b.Start(t)
		unharmed("after berth was killed and started")
		alive()

		p.run(t, "run", "--rm", "--pull", "never", b.Image, "true")
		p.run(t, "pod", "create", "--infra=false", "--name", "pod")
		p.run(t, "pod", "rm", "--force", "pod")
		p.run(t, "rm", "--force", "--time", "0", "served")
		p.run(t, "network", "rm", "theirs")
		p.run(t, "system", "prune", "--force", "--all", "--volumes")
		alive()
		after.Container.Exec(t, "true")
		after.Remove(t)

		p.run(t, "pull", "--quiet", "--tls-verify=false", b.Image)
		p.run(t, "network", "create", "theirs")
		serve("again")
		p.run(t, "system", "reset", "--force")
		alive()
		b.Restart(t)
		alive()
		b.pod(t).Remove(t)
		stays.Stop(t)
		stays.Remove(t)
		// podman leaves the bridges of its networks.
		for _, bridge := range []string{"cni-podman0", "cni-podman1", "podman0", "podman1"} {
			_ = exec.Command("ip", "link", "delete", bridge).Run()
		}
		b.nothingLeft(t)
	})
}
