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

// admin is a client of the management API.
func (b *bed) admin(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	testbed.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

// exitedWith fails unless a container is EXITED with a code.
func exitedWith(t *testing.T, st *runtimeapi.ContainerStatus, code int32) {
	t.Helper()
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != code {
		t.Errorf("the container is %s with %d %s, want EXITED with %d", st.GetState(), st.GetExitCode(), st.GetReason(), code)
	}
}

// noneRuns fails if one of the processes is alive.
func noneRuns(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d runs", pid)
		}
	}
}

// awaitEnd waits until a process has ended.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		if alive(pid) {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

// tookAtMost fails if something took longer than it may.
func tookAtMost(t *testing.T, limit time.Duration, began time.Time, what string) {
	t.Helper()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %v, more than %v", what, took, limit)
	}
}

// plugin installs a CNI plugin of a test's own in a directory below dir, and returns the
// configuration that has it found before the real one. In the script DIR is dir, where the
// test leaves its signs, and REAL the real plugin of that name.
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
