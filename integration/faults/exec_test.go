package faults

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

func (b *bed) tryExec(t *testing.T, c *testbed.Container, command ...string) (*runtimeapi.ExecSyncResponse, error) {
	t.Helper()
	return b.Client.ExecSync(testbed.Within(t, time.Minute), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: command, Timeout: 30})
}

// TestExecOfAbsentProgram runs a missing program under each runtime: the error must have the
// runtime's message, which names the program.
func TestExecOfAbsentProgram(t *testing.T) {
	runtimes := map[string]string{}
	for _, name := range []string{testbed.Runc, testbed.Crun, testbed.Runsc} {
		runtimes[name] = testbed.Part(t, name)
	}
	b := newBed(t, testbed.Options{Runtimes: runtimes})
	for name := range runtimes {
		t.Run(name, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Handler: name, Image: b.Image, Command: []string{"sleep", "3600"}})
			r, err := b.tryExec(t, pod.Container, "/no/such/program")
			t.Logf("answer: %v %v", r, err)
			testbed.Refused(t, err, codes.Unknown, "run command", "/no/such/program")
			pod.Container.Exec(t, "true")
			pod.Remove(t)
		})
	}
}

// TestBadRuntimeAtExec has the runtime fail in different ways at the start of a command.
func TestBadRuntimeAtExec(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"bad\"\n[runtimes.bad]\nruntime_path = %q\ncontainer_create_timeout = %q\n", runtime.Path, createTimeout)})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	for _, c := range []struct {
		name string
		exec string
		code codes.Code
		says []string
		not  string
	}{
		{"fails", "echo 'no such luck today' >&2; exit 1", codes.Unknown, []string{"no such luck today", "status 1"}, ""},
		{"fails silently", "exit 3", codes.Unknown, []string{"status 3"}, "stderr"},
		{"is killed", "echo 'on the way' >&2; kill -9 $$", codes.Unknown, []string{"signal 9", "on the way"}, "137"},
		{"is killed silently", "kill -9 $$", codes.Unknown, []string{"signal 9"}, "stderr"},
		{"hangs", "exec " + hang, codes.DeadlineExceeded, []string{"timed out"}, ""},
		{"talks too much", "i=0; while [ $i -lt 3000 ]; do echo 'blah blah blah blah' >&2; i=$((i+1)); done; exit 1", codes.Unknown, []string{"blah"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.on(t, "exec", c.exec)
			_, err := b.tryExec(t, pod.Container, "true")
			testbed.Refused(t, err, c.code, append(c.says, "run command")...)
			if c.not != "" && err != nil && strings.Contains(err.Error(), c.not) {
				t.Errorf("the error has %q: %v", c.not, err)
			}
			runtime.on(t, "exec", "")
			pod.Container.Exec(t, "true")
		})
	}
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestExecMeetsStop has a container exit while the runtime starts a command in it.
// The call must return the same error as a call after the exit, whatever error the
// runtime prints.
func TestExecMeetsStop(t *testing.T) {
	t.Parallel()
	runtime := newScripted(t)
	gate := t.TempDir()
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("default_runtime = \"met\"\n[runtimes.met]\nruntime_path = %q\n", runtime.Path)})
	wait := fmt.Sprintf(": >%q/at; while [ ! -e %q/go ]; do sleep 0.02; done\n", gate, gate)
	for _, c := range []struct {
		name string
		// exec is run by the runtime at the start of the command.
		exec string
		// stop is true if the test stops the container while the runtime waits.
		stop bool
	}{
		{"stopped, error of runc", wait, true},
		{"stopped, other error", wait + "echo 'setns process: broken pipe' >&2; exit 1", true},
		{"killed by another process", fmt.Sprintf("kill -9 $(cat %q/pid); echo 'setns process: broken pipe' >&2; exit 1", gate), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
			testbed.Must(t, os.WriteFile(filepath.Join(gate, "pid"), []byte(strconv.Itoa(b.info(t, pod.Container.ID).PID)), 0o600))
			runtime.on(t, "exec", c.exec)
			met := make(chan error, 1)
			go func() {
				_, err := b.tryExec(t, pod.Container, "true")
				met <- err
			}()
			if c.stop {
				testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat(filepath.Join(gate, "at")); return err })
				pod.Container.Stop(t, 0)
				testbed.Must(t, os.WriteFile(filepath.Join(gate, "go"), nil, 0o600))
			}
			first := <-met
			testbed.Refused(t, first, codes.FailedPrecondition, "container "+pod.Container.ID+" is not running")
			pod.Container.WaitExit(t)
			_, second := b.tryExec(t, pod.Container, "true")
			if status.Convert(first).Message() != status.Convert(second).Message() || status.Code(second) != codes.FailedPrecondition {
				t.Errorf("exec during the exit returned %v, after it %v", first, second)
			}
			runtime.on(t, "exec", "")
			for _, name := range []string{"at", "go"} {
				_ = os.Remove(filepath.Join(gate, name)) // the last case does not create them
			}
			pod.Remove(t)
		})
	}
}

// TestLargeOutputsOfCommands runs many commands at once that write more than fits in a
// response. The daemon must truncate their outputs to bound its memory. A command that
// runs alone gets nearly 16 MiB.
func TestLargeOutputsOfCommands(t *testing.T) {
	const (
		commands  = 12
		maxGrowth = 256 << 20 // 64 MiB of outputs in slices a quarter larger, as much again of encoded responses, and garbage not yet collected
	)
	b := newBed(t, testbed.Options{})
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	run := func() ([]byte, error) {
		r, err := b.Client.ExecSync(testbed.Within(t, 5*time.Minute), &runtimeapi.ExecSyncRequest{
			ContainerId: pod.Container.ID, Timeout: 280,
			Cmd: []string{"sh", "-c", "yes 0123456789abcde | head -c 20971520"},
		}, grpc.MaxCallRecvMsgSize(16<<20))
		return r.GetStdout(), err
	}
	growth := growthOf(t, b.PID())
	whole := bytes.Repeat([]byte("0123456789abcde\n"), 1<<20)
	answered := func(least int) {
		if out, err := run(); err != nil {
			t.Error(err)
		} else if len(out) < least || !bytes.HasPrefix(whole, out) {
			t.Errorf("the output has %d bytes, want at least the first %d that were written", len(out), least)
		}
	}
	var all sync.WaitGroup
	for range commands {
		all.Go(func() { answered(32 << 10) })
	}
	all.Wait()
	answered(16<<20 - 1024)
	growth(maxGrowth)
	pod.Remove(t)
}
