package validate

import (
	"math"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExecSync(t *testing.T) {
	for name, test := range map[string]struct {
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
			err := ExecSync(test.req)
			if test.field != "" {
				checkRefused(t, err, test.field)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStreams(t *testing.T) {
	cmd := []string{"sh"}
	for name, test := range map[string]struct {
		stdin, stdout, stderr, tty, ok bool
	}{
		"output":              {stdout: true, stderr: true, ok: true},
		"only errors":         {stderr: true, ok: true},
		"terminal":            {stdin: true, stdout: true, tty: true, ok: true},
		"terminal and errors": {stdin: true, stdout: true, stderr: true, tty: true},
		"nothing":             {},
		"terminal alone":      {tty: true},
	} {
		exec := &runtimeapi.ExecRequest{ContainerId: "1", Cmd: cmd, Stdin: test.stdin, Stdout: test.stdout, Stderr: test.stderr, Tty: test.tty}
		attach := &runtimeapi.AttachRequest{ContainerId: "1", Stdin: test.stdin, Stdout: test.stdout, Stderr: test.stderr, Tty: test.tty}
		for call, err := range map[string]error{"exec": Exec(exec), "attach": Attach(attach)} {
			switch {
			case test.ok && err != nil:
				t.Errorf("%s, %s: %v", name, call, err)
			case !test.ok:
				checkRefused(t, err, map[bool]string{true: "stderr", false: "stdin, stdout, stderr"}[test.stderr])
			}
		}
	}
	checkRefused(t, Exec(&runtimeapi.ExecRequest{ContainerId: "1", Stdout: true}), "cmd")
}

func TestPortForward(t *testing.T) {
	for _, ports := range [][]int32{nil, {1}, {80, 65535}} {
		if err := PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "1", Port: ports}); err != nil {
			t.Errorf("%v: %v", ports, err)
		}
	}
	checkRefused(t, PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "1", Port: []int32{80, 0}}), "port[1]")
	checkRefused(t, PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "1", Port: []int32{65536}}), "port[0]")
}
