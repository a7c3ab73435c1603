// Package faults tests berth under failures.
//
// Every test drives a real `berth serve` over its socket: daemons and
// supervisors are killed, requests are malformed, disks are full, registries and
// runtimes fail. The tests check what a kubelet depends on: the code and the text
// of errors, that no pod is lost, and that nothing is left on the host.
package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/admin/client"
)

// bed extends testbed.Bed by methods that only these tests need.
type bed struct{ *testbed.Bed }

// newBed starts berth. If the options have no handlers, runc is the only one.
func newBed(t *testing.T, options testbed.Options) *bed {
	t.Helper()
	return &bed{testbed.StartBed(t, "faults/busybox:1", options)}
}

// info has the fields of a container's verbose status that the tests read.
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

// supervisors returns the pids of this berth's supervisors by their key.
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

// life identifies a process by its pid and start time, so that a later process with the same pid
// differs. It fails the test if the process does not run.
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

// admin is a client of the management API.
func (b *bed) admin(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	testbed.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

// exitedWith fails the test unless a container is EXITED with a code.
func exitedWith(t *testing.T, st *runtimeapi.ContainerStatus, code int32) {
	t.Helper()
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != code {
		t.Errorf("the container is %s with %d %s, want EXITED with %d", st.GetState(), st.GetExitCode(), st.GetReason(), code)
	}
}

// noneRuns fails the test if one of the processes runs.
func noneRuns(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
}

// awaitEnd waits until a process has exited.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		if alive(pid) {
			return fmt.Errorf("process %d still runs", pid)
		}
		return nil
	})
}

// tookAtMost fails the test if more than limit has passed since began.
func tookAtMost(t *testing.T, limit time.Duration, began time.Time, what string) {
	t.Helper()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %v, more than %v", what, took, limit)
	}
}

// plugin installs a script as a CNI plugin in dir/bin, and returns a configuration by which berth
// finds it before a real plugin of the same name. In the script, DIR is replaced by dir and REAL by
// the path of the real plugin.
func plugin(t *testing.T, dir, name, script string) (config string) {
	t.Helper()
	usual, err := testbed.CNIBinDir()
	if err != nil {
		testbed.Missing(t, "%v", err)
	}
	bin := filepath.Join(dir, "bin")
	testbed.Must(t, os.MkdirAll(bin, 0o700))
	put(t, filepath.Join(bin, name), []byte(strings.NewReplacer("DIR", dir, "REAL", filepath.Join(usual, name)).Replace(script)))
	return fmt.Sprintf("[cni]\nbin_dirs = [%q, %q]\n", bin, usual)
}

func TestMain(m *testing.M) { os.Exit(testbed.RunBeside(m)) }
