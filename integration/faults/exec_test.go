package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

func (b *bed) tryExec(t *testing.T, c *testbed.Container, command ...string) (*runtimeapi.ExecSyncResponse, error) {
	t.Helper()
	return b.client.ExecSync(within(t, time.Minute), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: command, Timeout: 30})
}

// TestExecOfAbsentProgram has each runtime say in its own words what is not there.
func TestExecOfAbsentProgram(t *testing.T) {
	runtimes := map[string]string{}
	for _, name := range []string{testbed.Runc, testbed.Crun, testbed.Runsc} {
		runtimes[name] = testbed.Part(t, name)
	}
	b := newBed(t, testbed.Options{Runtimes: runtimes})
	for name := range runtimes {
		t.Run(name, func(t *testing.T) {
			pod := b.client.RunPod(t, testbed.PodSpec{Handler: name, Image: b.image, Command: []string{"sleep", "3600"}})
			r, err := b.tryExec(t, pod.Container, "/no/such/program")
			t.Logf("answer: %v %v", r, err)
			refused(t, err, codes.Unknown, "run command", "/no/such/program")
			pod.Container.Exec(t, "true")
			pod.Remove(t)
		})
	}
}

// TestBadRuntimeAtExec has a runtime fail at the start of a command.
func TestBadRuntimeAtExec(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"bad\"\n[runtimes.bad]\nruntime_path = %q\ncontainer_create_timeout = %q\n", runtime.Path, createTimeout)})
	atRest := b.rest(t)
	pod := b.client.RunPod(t, testbed.PodSpec{Image: b.image, Command: []string{"sleep", "3600"}})
	for _, c := range []struct {
		name string
		exec string
		code codes.Code
		says []string
		not  string
	}{
		{"fails", "echo 'no such luck today' >&2; exit 1", codes.Unknown, []string{"no such luck today", "status 1"}, "said nothing"},
		{"fails silently", "exit 3", codes.Unknown, []string{"status 3"}, "stderr"},
		{"is killed", "echo 'on the way' >&2; kill -9 $$", codes.Unknown, []string{"signal 9", "on the way"}, "137"},
		{"is killed silently", "kill -9 $$", codes.Unknown, []string{"signal 9"}, "stderr"},
		{"hangs", "exec " + hang, codes.DeadlineExceeded, []string{"did not end in time"}, ""},
		{"talks too much", "i=0; while [ $i -lt 3000 ]; do echo 'blah blah blah blah' >&2; i=$((i+1)); done; exit 1", codes.Unknown, []string{"blah"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.on(t, "exec", c.exec)
			_, err := b.tryExec(t, pod.Container, "true")
			refused(t, err, c.code, append(c.says, "run command")...)
			if c.not != "" && err != nil && strings.Contains(err.Error(), c.not) {
				t.Errorf("it says %q: %v", c.not, err)
			}
			runtime.on(t, "exec", "")
			pod.Container.Exec(t, "true")
		})
	}
	pod.Remove(t)
	b.nothingLeft(t, atRest)
}
