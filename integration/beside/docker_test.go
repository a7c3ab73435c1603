package beside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
)

// docker is the dockerd of one test, which starts its own containerd.
type docker struct {
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

func newDocker(t *testing.T) *docker {
	t.Helper()
	d := &docker{dir: t.TempDir()}
	d.start(t)
	t.Cleanup(func() {
		d.stop(t, syscall.SIGTERM)
		_ = unix.Unmount(filepath.Join(d.dir, "root"), unix.MNT_DETACH) // dockerd bind-mounts this directory onto itself
	})
	return d
}

func (d *docker) socket() string { return "unix:///run/docker-test.sock" }

func (d *docker) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	testbed.Must(t, err)
	defer log.Close()
	d.cmd = exec.Command("dockerd", "--host", d.socket(), "--data-root", filepath.Join(d.dir, "root"), "--exec-root", "/run/docker-test",
		"--pidfile", "/run/docker-test.pid", "--config-file", filepath.Join(d.dir, "none.json"), "--shutdown-timeout", "1")
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testbed.Must(t, os.WriteFile(filepath.Join(d.dir, "none.json"), []byte("{}"), 0o600))
	testbed.Must(t, d.cmd.Start())
	d.done = make(chan struct{})
	go func() { defer close(d.done); _ = d.cmd.Wait() }()
	testbed.Eventually(t, time.Minute, func() error { return exec.Command("docker", "--host", d.socket(), "version").Run() })
}

// stop stops dockerd by a signal. If that is SIGKILL, the kernel kills dockerd's containerd too.
func (d *docker) stop(t *testing.T, signal syscall.Signal) {
	t.Helper()
	const state = "/run/docker-test/containerd/"
	pid, _ := os.ReadFile(state + "containerd.pid")
	if t.Failed() {
		_ = exec.Command("docker", "--host", d.socket(), "rm", "--force", "served").Run()
	}
	_ = d.cmd.Process.Signal(signal)
	<-d.done
	if signal == syscall.SIGKILL {
		testbed.Eventually(t, time.Minute, func() error {
			if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
				return fmt.Errorf("process %s of containerd still runs", pid)
			}
			return nil
		})
		_ = os.Remove(state + "containerd.pid")
		_ = os.Remove(state + "containerd.sock")
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(d.dir, "log"))
		t.Logf("the end of the log of dockerd:\n%s", log[max(0, len(log)-4000):])
	}
}

func (d *docker) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", append([]string{"--host", d.socket()}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestDocker starts, uses, kills and stops a dockerd on a node with pods of berth.
func TestDocker(t *testing.T) {
	needForeign(t, "docker.io", "dockerd", "docker", "containerd", "runc")
	onNode(t, nil, func(t *testing.T) {
		b := newBed(t)
		const ours, theirPort = 15_000, "25000"
		before, stays := b.pod(t), b.pod(t, hostPort(ours))
		d := newDocker(t)
		serve := func() (address string) {
			t.Helper()
			d.run(t, "run", "--detach", "--restart", "always", "--name", "served", "--network", "theirs", "--publish", theirPort+":8080", b.Image,
				"sh", "-c", "echo mapped > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")
			return d.run(t, "inspect", "--format", "{{.NetworkSettings.Networks.theirs.IPAddress}}", "served")
		}
		d.run(t, "pull", "--quiet", b.Image)
		d.run(t, "network", "create", "theirs")
		address := serve()
		unharmed := func(when string) {
			t.Helper()
			d.run(t, "exec", "served", "true")
			if now := d.run(t, "inspect", "--format", "{{.State.Status}} {{.NetworkSettings.Networks.theirs.IPAddress}}", "served"); now != "running "+address {
				t.Errorf("%s Docker's container is %q, want running %s", when, now, address)
			}
			b.answers(t, 25_000)
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
		after := b.pod(t, hostPort(ours+1))
		b.answers(t, ours+1)
		unharmed("after berth stopped and started pods")
		b.Kill9(t)
		b.Start(t)
		unharmed("after berth was killed and started")
		alive()

		d.stop(t, syscall.SIGTERM)
		alive()
		b.pod(t).Remove(t)
		d.start(t)
		alive()
		d.stop(t, syscall.SIGKILL)
		alive()
		after.Remove(t)
		d.start(t)
		testbed.Eventually(t, time.Minute, func() error {
			return exec.Command("docker", "--host", d.socket(), "exec", "served", "true").Run()
		})
		alive()
		d.run(t, "rm", "--force", "served")
		d.run(t, "network", "rm", "theirs")
		d.run(t, "system", "prune", "--force", "--all", "--volumes")
		alive()
		b.Restart(t)
		alive()
		d.stop(t, syscall.SIGTERM)
		b.pod(t).Remove(t)
		stays.Stop(t)
		stays.Remove(t)
		_ = exec.Command("ip", "link", "delete", "docker0").Run()
		b.nothingLeft(t)
	})
}
