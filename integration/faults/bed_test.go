// Package faults breaks berth on purpose and looks at what is left.
//
// Every test drives a real `berth serve` over its socket: daemons and
// supervisors are killed, requests are malformed, disks are full, registries and
// runtimes fail. What is asked each time is what a kubelet depends on: the code
// and the text of the answer, that no pod is lost, and that nothing is left
// behind on the host.
package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// bed is testbed's, for what only these tests ask of it.
type bed struct{ *testbed.Bed }

// newBed starts berth. Without handlers given there is one, runc.
func newBed(t *testing.T, options testbed.Options) *bed {
	t.Helper()
	return &bed{testbed.StartBed(t, "faults/busybox:1", options)}
}

// info is what the verbose status of a container says about who runs it.
type info struct {
	PID         int    `json:"pid"`
	Handler     string `json:"handler"`
	RuntimePath string `json:"runtimePath"`
	Supervisor  string `json:"supervisor"`
}

func (b *bed) info(t *testing.T, container string) info {
	t.Helper()
	r, err := b.Client.ContainerStatus(testbed.Within(t, time.Minute), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	testbed.Mustf(t, err, "verbose status of %s", container)
	var i info
	testbed.Mustf(t, json.Unmarshal([]byte(r.GetInfo()["info"]), &i), "verbose status of %s", container)
	return i
}

// supervisors returns the pids of the supervisors of this berth by their key.
func (b *bed) supervisors(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	entries, err := os.ReadDir("/proc")
	testbed.Must(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A zombie has no command line.
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if len(args) != 4 || args[1] != "serve" || !strings.HasPrefix(args[3], b.State+"/") {
			continue
		}
		found[filepath.Base(args[3])] = pid
	}
	return found
}

// life is a process, told apart from a later one with its pid.
func life(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	testbed.Mustf(t, err, "process %d is gone", pid)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const start = 19 // starttime, field 22 of proc(5), counted from the state
	if fields[0] == "Z" {
		t.Fatalf("process %d is dead", pid)
	}
	return strconv.Itoa(pid) + "@" + fields[start]
}
