package validate

import (
	"math"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestExecSync(t *testing.T) {
	for name, tc := range map[string]struct {
		req   *runtimeapi.ExecSyncRequest
		field string
	}{
		"plain":             {&runtimeapi.ExecSyncRequest{ContainerId: "1", Cmd: []string{"true"}}, ""},
		"empty argument":    {&runtimeapi.ExecSyncRequest{ContainerId: "1", Cmd: []string{"echo", ""}, Timeout: 5}, ""},
		"no program":        {&runtimeapi.ExecSyncRequest{ContainerId: "1", Cmd: []string{""}}, "cmd"},
		"NUL":               {&runtimeapi.ExecSyncRequest{ContainerId: "1", Cmd: []string{"a", "\x00"}}, "cmd[1]"},
		"negative timeout":  {&runtimeapi.ExecSyncRequest{ContainerId: "1", Cmd: []string{"a"}, Timeout: -1}, "timeout"},
		"timeout overflows": {&runtimeapi.ExecSyncRequest{ContainerId: "1", Cmd: []string{"a"}, Timeout: math.MaxInt64}, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			err := ExecSync(tc.req)
			if tc.field != "" {
				checkRefused(t, err, tc.field)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStreams(t *testing.T) {
	cmd := []string{"sh"}
	for name, tc := range map[string]struct {
		stdin, stdout, stderr, tty, ok bool
	}{
		"output":              {stdout: true, stderr: true, ok: true},
		"only errors":         {stderr: true, ok: true},
		"terminal":            {stdin: true, stdout: true, tty: true, ok: true},
		"terminal and errors": {stdin: true, stdout: true, stderr: true, tty: true},
		"nothing":             {},
		"terminal alone":      {tty: true},
	} {
		exec := &runtimeapi.ExecRequest{ContainerId: "1", Cmd: cmd, Stdin: tc.stdin, Stdout: tc.stdout, Stderr: tc.stderr, Tty: tc.tty}
		attach := &runtimeapi.AttachRequest{ContainerId: "1", Stdin: tc.stdin, Stdout: tc.stdout, Stderr: tc.stderr, Tty: tc.tty}
		for call, err := range map[string]error{"exec": Exec(exec), "attach": Attach(attach)} {
			switch {
			case tc.ok && err != nil:
				t.Errorf("%s, %s: %v", name, call, err)
			case !tc.ok:
				checkRefused(t, err, map[bool]string{true: "stderr", false: "stdin, stdout, stderr"}[tc.stderr])
			}
		}
	}
	checkRefused(t, Exec(&runtimeapi.ExecRequest{ContainerId: "1", Stdout: true}), "cmd")
}

func TestPortForward(t *testing.T) {
	for _, ports := range [][]int32{nil, {1}, {80, 65535}} {
		test.Checkf(t, PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "1", Port: ports}), "%v", ports)
	}
	checkRefused(t, PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "1", Port: []int32{80, 0}}), "port[1]")
	checkRefused(t, PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "1", Port: []int32{65536}}), "port[0]")
}
