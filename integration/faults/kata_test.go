package faults

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	spdyclient "k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	spdystream "k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

// kataBed starts berth with an imitation of Kata's shim as its handler, whose table
// has these lines.
func kataBed(t *testing.T, settings shims.Kata, lines string) (*bed, *testbed.Kata) {
	t.Helper()
	settings.Memory = 8
	kata := testbed.NewKata(t, settings)
	return newBed(t, testbed.Options{Config: "default_runtime = \"kata\"\n" + kata.TOML("kata", lines)}), kata
}

// machines returns the pids of this berth's (imitated) virtual machines by sandbox.
func (b *bed) machines(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, p := range b.Snapshot(t)[testbed.Processes] {
		_, name, ok := strings.Cut(p, "qemu-system-imitation machine -name sandbox-")
		if !ok {
			continue
		}
		pid, _, _ := strings.Cut(p, " ")
		id, _, _ := strings.Cut(name, " ")
		found[id], _ = strconv.Atoi(pid)
	}
	return found
}

// awaitMachine waits for a machine that is not in before.
func (b *bed) awaitMachine(t *testing.T, before map[string]int) (sandbox string, pid int) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		for sandbox, pid = range b.machines(t) {
			if before[sandbox] == 0 {
				return nil
			}
		}
		return errors.New("no new machine runs")
	})
	return sandbox, pid
}

// machineEnded fails the test if the machine runs or the shim's record of it exists.
func machineEnded(t *testing.T, sandbox string, pid int) {
	t.Helper()
	if alive(pid) {
		t.Errorf("the machine of sandbox %s still runs", sandbox)
	}
	if _, err := os.Stat(filepath.Join(shims.KataState, sandbox)); !os.IsNotExist(err) {
		t.Errorf("the shim's record of sandbox %s is left: %v", sandbox, err)
	}
}

// hold creates a file; release removes it. A shim whose setting names the file waits until then.
func hold(t *testing.T) (path string, release func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "hold")
	testbed.Must(t, os.WriteFile(path, nil, 0o600))
	release = func() { _ = os.Remove(path) }
	t.Cleanup(release)
	return path, release
}

// TestKataCreateTooLate has the shim's Create of a pod exceed its timeout after the
// machine has started. Nothing may be left, whether or not Create returns later.
func TestKataCreateTooLate(t *testing.T) {
	t.Parallel()
	b, kata := kataBed(t, shims.Kata{}, "container_create_timeout = \"2s\"")
	atRest := b.Rest(t)
	for name, c := range map[string]struct{ ends, killed bool }{
		"Create never returns":                {},
		"Create returns later":                {ends: true},
		"daemon killed, Create never returns": {killed: true},
		"daemon killed, Create returns later": {ends: true, killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			held, release := hold(t)
			kata.Set(t, func(s *shims.Kata) { s.HoldCreate = held })
			defer kata.Set(t, func(s *shims.Kata) { s.HoldCreate = "" })
			before := b.machines(t)
			done := make(chan error, 1)
			go func() {
				_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
				done <- err
			}()
			sandbox, pid := b.awaitMachine(t, before)
			if c.killed {
				b.Kill9(t)
			}
			if c.ends {
				time.AfterFunc(3*time.Second, release) // after container_create_timeout
			}
			if err := <-done; err == nil {
				t.Error("RunPodSandbox succeeded")
			} else if !c.killed && !strings.Contains(err.Error(), "container_create_timeout") {
				t.Errorf("the error does not name container_create_timeout: %v", err)
			}
			if c.killed {
				b.Start(t)
				awaitEnd(t, pid)
			} else {
				machineEnded(t, sandbox, pid)
			}
			b.NothingLeft(t, atRest)
			machineEnded(t, sandbox, pid)
		})
	}
}

// TestKataSelfCheckTooLate has the shim's Create of a self-check pod exceed its timeout:
// the machine of the pod must be stopped.
func TestKataSelfCheckTooLate(t *testing.T) {
	t.Parallel()
	held, _ := hold(t)
	b, kata := kataBed(t, shims.Kata{HoldCreate: held}, "container_create_timeout = \"2s\"\nself_check_pod = true")
	sandbox, pid := b.awaitMachine(t, nil)
	awaitEnd(t, pid)
	kata.Set(t, func(s *shims.Kata) { s.HoldCreate = "" })
	testbed.Eventually(t, time.Minute, func() error {
		if _, there := b.machines(t)[sandbox]; there {
			return errors.New("the machine of the self-check pod still runs")
		}
		return nil
	})
}

// TestKataAbstractSocket has the shim listen on an abstract socket, and then name an
// address at which it does not listen.
func TestKataAbstractSocket(t *testing.T) {
	t.Parallel()
	b, kata := kataBed(t, shims.Kata{AbstractSocket: true}, "")
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	pod.Container.Exec(t, "true")
	b.Kill9(t)
	b.Start(t)
	pod.Container.Exec(t, "true")
	pod.Remove(t)
	kata.Set(t, func(s *shims.Kata) { s.AnswersElsewhere = true })
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
	testbed.Refused(t, err, codes.Unavailable, "/no/such/socket")
	b.NothingLeft(t, atRest)
}

// TestKataEvents has a shim publish events by the program that berth names. berth must
// receive an OOM event, and read the shim's log also after a restart.
func TestKataEvents(t *testing.T) {
	t.Parallel()
	b, _ := kataBed(t, shims.Kata{PublishBinary: true}, "")
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	said := func() int { return strings.Count(b.Log(), "Exec() start") }
	pod.Container.Exec(t, "true")
	testbed.Eventually(t, time.Minute, func() error {
		if said() == 0 {
			return errors.New("berth's log does not have the shim's lines")
		}
		return nil
	})
	b.Restart(t)
	before := said()
	pod.Container.Exec(t, "true")
	testbed.Eventually(t, time.Minute, func() error {
		if said() == before {
			return errors.New("after a restart, berth's log does not have the shim's new lines")
		}
		return nil
	})
	eater := pod.RunContainer(t, "eater", testbed.PodSpec{
		Image: b.Image, Command: []string{"tail", "/dev/zero"},
		Container: func(c *runtimeapi.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 32 << 20 },
	})
	eater.WaitExit(t)
	testbed.Eventually(t, time.Minute, func() error { // the OOM event may come after the exit
		if st := eater.Status(t); st.GetReason() != "OOMKilled" {
			return fmt.Errorf("the container exited with %d %s, want OOMKilled", st.GetExitCode(), st.GetReason())
		}
		return nil
	})
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestKataShimKilled kills the shim of a pod whose container has already exited. The
// shim's record still has the container, so the shim's delete action leaves the machine.
func TestKataShimKilled(t *testing.T) {
	t.Parallel()
	b, kata := kataBed(t, shims.Kata{ForgetsNothing: true}, "")
	run := func(t *testing.T) (*testbed.Pod, int) {
		t.Helper()
		pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"true"}})
		pod.Container.WaitExit(t)
		t.Cleanup(func() { _ = os.Remove(filepath.Join(shims.KataState, pod.ID)) }) // left by the shim with ForgetsNothing
		return pod, b.machines(t)[pod.ID]
	}
	atRest := b.Rest(t)
	t.Run("the sandbox becomes not ready", func(t *testing.T) {
		held, release := hold(t)
		kata.Set(t, func(s *shims.Kata) { s.HoldDelete = held })
		defer kata.Set(t, func(s *shims.Kata) { s.HoldDelete = "" })
		pod, machine := run(t)
		b.killShim(t, pod.ID)
		testbed.Eventually(t, time.Minute, func() error { // the delete action hangs
			if state := pod.Status(t).GetState(); state != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Errorf("the sandbox is %s", state)
			}
			if alive(machine) {
				return errors.New("the machine still runs")
			}
			return nil
		})
		release()
		pod.Stop(t)
		pod.Remove(t)
	})
	t.Run("StopPodSandbox stops the machine", func(t *testing.T) {
		pod, machine := run(t)
		b.killShim(t, pod.ID)
		pod.Stop(t)
		if alive(machine) {
			t.Error("the machine still runs")
		}
		pod.Remove(t)
	})
	t.Run("StopPodSandbox after the daemon was down", func(t *testing.T) {
		pod, machine := run(t)
		b.Kill9(t)
		b.killShim(t, pod.ID)
		b.Start(t)
		pod.Stop(t)
		if alive(machine) {
			t.Error("the machine still runs")
		}
		pod.Remove(t)
	})
	t.Run("a running container exits", func(t *testing.T) {
		pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
		machine := b.machines(t)[pod.ID]
		b.killShim(t, pod.ID)
		st := pod.Container.WaitExit(t)
		if alive(machine) {
			t.Error("the container is reported as exited, but the machine still runs")
		}
		if st.GetExitCode() != 137 || !strings.Contains(st.GetMessage(), "shim died") {
			t.Errorf("the container exited with %d %s %q, want 137 and the reason", st.GetExitCode(), st.GetReason(), st.GetMessage())
		}
		pod.Remove(t)
	})
	b.NothingLeft(t, atRest)
}

// TestForeignShimHangs sends SIGSTOP to the shim of a pod, so that it accepts calls but
// does not answer. StopPodSandbox must return in time and kill all processes.
func TestForeignShimHangs(t *testing.T) {
	t.Parallel()
	kata := testbed.NewKata(t, shims.Kata{Memory: 8})
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim)) + kata.TOML("kata", "")})
	atRest := b.Rest(t)
	for _, handler := range []string{"kata", "shim"} {
		t.Run(handler, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: family})
			other := pod.RunContainer(t, "other", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
			inside := inCgroup(t, b.info(t, pod.Container.ID).PID)
			if machine := b.machines(t)[pod.ID]; machine > 0 {
				inside = append(inside, machine)
			}
			shim := shimsOf(t, pod.ID)
			if len(shim) != 1 || len(inside) < 2 {
				t.Fatalf("the pod has shims %v and processes %v, want one shim and more processes", shim, inside)
			}
			killAs(t, shim[0], syscall.SIGSTOP)
			testbed.Checkf(t, pod.TryStop(t, 100*time.Second), "stop")
			noneRuns(t, append(inside, shim...))
			for _, c := range []*testbed.Container{pod.Container, other} {
				exitedWith(t, c.Status(t), 137)
			}
			pod.Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// TestForeignShimDoesNotKill stops pods whose shim answers Kill without killing.
// StopPodSandbox must return in time and kill all processes.
func TestForeignShimDoesNotKill(t *testing.T) {
	t.Parallel()
	b, kata := kataBed(t, shims.Kata{}, "")
	atRest := b.Rest(t)
	t.Run("all", func(t *testing.T) {
		for _, tc := range []struct {
			name      string
			change    func(s *shims.Kata, file string)
			container bool
		}{
			{"Kill has no effect", func(s *shims.Kata, file string) { s.DropKill = file }, true},
			{"Kill fails", func(s *shims.Kata, file string) { s.FailKill = file }, true},
			{"Kill fails for a pod without containers", func(s *shims.Kata, file string) { s.FailKill = file }, false},
		} {
			file := filepath.Join(t.TempDir(), "unkillable")
			kata.Set(t, func(s *shims.Kata) { s.DropKill, s.FailKill = "", ""; tc.change(s, file) })
			spec := testbed.PodSpec{Image: b.Image, Command: family}
			var pod *testbed.Pod
			var inside []int
			if tc.container {
				pod = b.Client.RunPod(t, spec)
				inside = inCgroup(t, b.info(t, pod.Container.ID).PID)
			} else {
				pod = b.Client.RunSandbox(t, spec)
			}
			inside = append(inside, b.machines(t)[pod.ID])
			shim := shimsOf(t, pod.ID)
			if len(shim) != 1 || inside[len(inside)-1] == 0 || tc.container && len(inside) < 3 {
				t.Fatalf("the pod has shims %v and processes %v, want one shim and more processes", shim, inside)
			}
			testbed.Must(t, os.WriteFile(file, nil, 0o600))
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				testbed.Checkf(t, pod.TryStop(t, 100*time.Second), "stop")
				noneRuns(t, append(inside, shim...))
				if tc.container {
					exitedWith(t, pod.Container.Status(t), 137)
				}
				_ = os.Remove(file) // so that the shim can kill what a failed test left
				pod.Remove(t)
			})
		}
	})
	b.NothingLeft(t, atRest)
}

// TestKata runs a pod under a shim that, like Kata's, decodes options with typeurl 1, has
// a cgroup of its own, and kills the container if a command is killed with "all".
func TestKata(t *testing.T) {
	t.Parallel()
	b, _ := kataBed(t, shims.Kata{}, "")
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	testbed.Contains(t, pod.Container.Exec(t, "cat", "/proc/self/cgroup"), "/kata_"+pod.ID+"/", "cgroup of the container")
	t.Run("a command that times out does not stop its container", func(t *testing.T) {
		_, err := b.Client.ExecSync(testbed.Within(t, time.Minute), &runtimeapi.ExecSyncRequest{
			ContainerId: pod.Container.ID, Cmd: []string{"sleep", "3601"}, Timeout: 1,
		})
		testbed.Refused(t, err, codes.DeadlineExceeded, "timed out")
		b.awaitNone(t, "sleep 3601")
		if st := pod.Container.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container is %s with exit code %d", st.GetState(), st.GetExitCode())
		}
		pod.Container.Exec(t, "true")
	})
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestKataOverhead: the overhead of pods in virtual machines is not measured; the answer has the
// reason.
func TestKataOverhead(t *testing.T) {
	t.Parallel()
	kata := testbed.NewKata(t, shims.Kata{})
	b := newBed(t, testbed.Options{Config: "default_runtime = \"kata\"\n" + kata.TOML("kata", "")})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "600"}})
	if o := b.overhead(t, "kata"); o.GetLive() != nil || !strings.Contains(o.GetNoLiveReason(), "separate kernel") {
		t.Errorf("the overhead is %v, want only a reason", o)
	}
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// awaitNone waits until no process of this berth has words in its command line.
func (b *bed) awaitNone(t *testing.T, words string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		for _, p := range b.Snapshot(t)[testbed.Processes] {
			if strings.Contains(p, words) {
				return fmt.Errorf("a process still runs: %s", p)
			}
		}
		return nil
	})
}

// TestKataPortForward forwards to a program in a virtual machine. The program listens on
// the pod's address, but not in the network namespace that berth gave to the shim.
func TestKataPortForward(t *testing.T) {
	t.Parallel()
	b, _ := kataBed(t, shims.Kata{Network: true}, "")
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{
		"sh", "-c", "httpd -p 127.0.0.1:8081; exec nc -ll -p 8080 -e echo hello",
	}})
	machine, err := os.Stat(filepath.Join("/proc", strconv.Itoa(b.machines(t)[pod.ID]), "ns", "net"))
	testbed.Must(t, err)
	given, err := os.Stat(filepath.Join("/run/netns", "berth-"+pod.ID[:32]))
	if err != nil || os.SameFile(machine, given) {
		t.Fatalf("the machine uses the network namespace that its shim was given: %v", err)
	}
	testbed.Eventually(t, time.Minute, func() error { // the program may not listen yet
		said, err := b.forward(t, pod.ID, 8080)
		if said != "hello\n" {
			return fmt.Errorf("the forwarded port sent %q: %w", said, err)
		}
		return nil
	})
	for _, port := range []int{8081, 8082} { // only on the machine's loopback, and no listener
		if said, err := b.forward(t, pod.ID, port); said != "" || err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("port %d: got %q, %v, want connection refused", port, said, err)
		}
	}
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// forward returns the bytes that a pod's port sends through a port-forward, as kubectl
// makes it.
func (b *bed) forward(t *testing.T, sandbox string, port int) (said string, err error) {
	t.Helper()
	r, err := b.Client.PortForward(testbed.Within(t, time.Minute), &runtimeapi.PortForwardRequest{PodSandboxId: sandbox, Port: []int32{int32(port)}})
	if err != nil {
		return "", err
	}
	u, err := url.Parse(r.GetUrl())
	if err != nil {
		return "", err
	}
	upgrader, err := spdystream.NewRoundTripperWithConfig(spdystream.RoundTripperConfig{PingPeriod: 5 * time.Second})
	if err != nil {
		return "", err
	}
	dialer := spdyclient.NewDialerForStreaming(spdyclient.NewUpgraderForStreaming(upgrader), &http.Client{Transport: upgrader}, http.MethodPost, u)
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "1")
	failure, err := conn.CreateStream(headers)
	if err != nil {
		return "", err
	}
	_ = failure.Close() // for reading only
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return "", err
	}
	time.AfterFunc(30*time.Second, func() { _ = conn.Close() })
	_ = data.Close() // nothing is sent to the pod
	texts := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(data) // does not end without a connection to the pod
		texts <- string(text)
	}()
	if why, err := io.ReadAll(failure); len(why) > 0 || err != nil {
		return "", errors.Join(errors.New(string(why)), err)
	}
	return <-texts, nil
}
