// Package faults breaks berth on purpose and looks at what is left.
//
// Every test drives a real `berth serve` over its socket: daemons and
// supervisors are killed, requests are malformed, disks are full, registries and
// runtimes fail. What is asked each time is what a kubelet depends on: the code
// and the text of the answer, that no pod is lost, and that nothing is left
// behind on the host.
package faults

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// bed is a berth with a network, a registry and an image in it.
type bed struct {
	*testbed.Berth
	client   *testbed.Client
	cni      *testbed.CNI
	registry *testbed.Registry
	image    string
}

// newBed starts berth. Without handlers given there is one, runc.
func newBed(t *testing.T, options testbed.Options) *bed {
	t.Helper()
	if options.Runtimes == nil && !strings.Contains(options.Config, "[runtimes.") {
		options.Runtimes = map[string]string{"runc": testbed.Part(t, testbed.Runc)}
	}
	b := &bed{cni: testbed.NewCNI(t), registry: testbed.NewRegistry(t, testbed.RegistryOptions{})}
	b.image = b.registry.Push(t, "faults/busybox:1", testbed.Busybox(t))
	options.CNI = b.cni
	options.Registries = append(options.Registries, b.registry)
	b.Berth = testbed.StartBerth(t, options)
	b.client = b.Berth.Client
	return b
}

// rest pulls the image, lets a pod come and go for what stays for good (the
// layers of the image, the pods' cgroup), and restarts the daemon, so that no
// supervisor idles. It returns what is on the host then.
func (b *bed) rest(t *testing.T) testbed.Snapshot {
	t.Helper()
	b.client.RunPod(t, testbed.PodSpec{Image: b.image, Command: []string{"true"}}).Remove(t)
	b.Restart(t)
	return b.Snapshot(t)
}

// nothingLeft removes all pods and fails if more is there than at rest.
func (b *bed) nothingLeft(t *testing.T, atRest testbed.Snapshot) {
	t.Helper()
	if err := b.client.RemoveAllPods(context.Background()); err != nil {
		t.Errorf("remove what is listed: %v", err)
	}
	// Idle supervisors wait a minute for the next pod; a restart sends them away.
	b.Restart(t)
	b.NoLeaks(t, atRest)
}

// within bounds one call.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// maxText is how long an error may be: it ends up in events.
const maxText = 1024

// refused fails unless err has one code and every text given.
func refused(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("it was accepted; want %s", code)
		return
	}
	st := status.Convert(err)
	if st.Code() != code {
		t.Errorf("code is %s, want %s: %s", st.Code(), code, st.Message())
	}
	if len(st.Message()) > maxText {
		t.Errorf("the text has %d bytes, more than %d: %s", len(st.Message()), maxText, st.Message())
	}
	for _, text := range texts {
		if !strings.Contains(st.Message(), text) {
			t.Errorf("the text does not say %q: %s", text, st.Message())
		}
	}
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
	r, err := b.client.ContainerStatus(within(t, time.Minute), &runtimeapi.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		t.Fatalf("verbose status of %s: %v", container, err)
	}
	var i info
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &i); err != nil {
		t.Fatalf("verbose status of %s: %v", container, err)
	}
	return i
}

// supervisors returns the pids of the supervisors of this berth by their key.
func (b *bed) supervisors(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatalf("process %d is gone: %v", pid, err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const start = 19 // starttime, field 22 of proc(5), counted from the state
	if fields[0] == "Z" {
		t.Fatalf("process %d is dead", pid)
	}
	return strconv.Itoa(pid) + "@" + fields[start]
}
