// Package live changes the handlers of a real `berth serve` while pods run on real runtimes, and
// checks pods, the CRI's Status, the metrics and the log. A test for a problem that users reported
// of other daemons is named TestPain and the problem.
package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 30 * time.Second

// bed is a berth whose one handler at first is runc.
type bed struct {
	*testbed.Bed
}

func newBed(t *testing.T) *bed {
	t.Helper()
	// Handlers are probed each second, so that tests need not wait.
	b := &bed{testbed.StartBed(t, "live/busybox:1", testbed.Options{Config: "[handlers]\nprobe_interval = \"1s\"\n"})}
	b.Client.Pull(t, "", b.Image)
	// The table is in a drop-in, because the bed's directory for the socket exists only now.
	b.DropIn(t, "60-metrics", fmt.Sprintf("[metrics]\naddress = %q\n", "unix://"+b.metrics()))
	b.Restart(t)
	return b
}

func (b *bed) metrics() string { return filepath.Join(b.Dir, "metrics.sock") }

func (b *bed) remove(t *testing.T, path string) {
	t.Helper()
	testbed.Must(t, os.Remove(path))
}

// table is the table of a handler in the configuration.
func table(name, path string) string {
	return fmt.Sprintf("[runtimes.%s]\nruntime_path = %q\n", name, path)
}

func (b *bed) pod(t *testing.T, handler string) *testbed.Pod {
	t.Helper()
	return b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sleep", "1000"}})
}

// works fails unless the pod's container runs commands, and a new container runs in the pod.
func works(t *testing.T, b *bed, pod *testbed.Pod) {
	t.Helper()
	if got := pod.Container.Exec(t, "echo", "here"); got != "here\n" {
		t.Errorf("exec prints %q", got)
	}
	late := pod.RunContainer(t, fmt.Sprintf("late-%d", time.Now().UnixNano()), testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}})
	late.Exec(t, "true")
	late.Stop(t, 0)
	late.Remove(t)
}

// handlerState is a handler in the verbose Status.
type handlerState struct {
	Name, State, Reason, Origin string
	Pods                        int
	Since                       uint64
	Capabilities                capability.Table
}

type handlers struct {
	Generation uint64
	Digest     string
	Default    string
	Handlers   []handlerState
}

func (h handlers) of(name string) handlerState {
	for _, one := range h.Handlers {
		if one.Name == name {
			return one
		}
	}
	return handlerState{}
}

func (b *bed) status(t *testing.T) (*runtimeapi.StatusResponse, handlers) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := b.Client.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	testbed.Must(t, err)
	var h handlers
	if err := json.Unmarshal([]byte(resp.GetInfo()["handlers"]), &h); err != nil {
		t.Fatalf("%v: %s", err, resp.GetInfo()["handlers"])
	}
	return resp, h
}

// waitState waits until a handler is in a state, or does not exist if state is "".
func (b *bed) waitState(t *testing.T, name, state string) handlerState {
	t.Helper()
	var got handlerState
	testbed.Eventually(t, patience, func() error {
		_, all := b.status(t)
		if got = all.of(name); got.State != state {
			return fmt.Errorf("handler %s is in state %q (%s), not %q", name, got.State, got.Reason, state)
		}
		return nil
	})
	return got
}

// advertised returns whether Status lists a handler, and whether its condition HandlersReady is
// true.
func (b *bed) advertised(t *testing.T, name string) (listed, allReady bool) {
	t.Helper()
	resp, _ := b.status(t)
	for _, h := range resp.GetRuntimeHandlers() {
		listed = listed || h.GetName() == name
	}
	for _, c := range resp.GetStatus().GetConditions() {
		switch c.GetType() {
		case "HandlersReady":
			allReady = c.GetStatus()
			if !allReady && !strings.Contains(c.GetMessage(), name) {
				t.Errorf("the condition HandlersReady does not name %s: %s", name, c.GetMessage())
			}
		case runtimeapi.RuntimeReady:
			if !c.GetStatus() {
				t.Error("the condition RuntimeReady is false")
			}
		}
	}
	return listed, allReady
}

// metric returns the value of a series as text, "" if it does not exist.
func (b *bed) metric(t *testing.T, series string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", b.metrics())
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://berth/metrics", http.NoBody)
	testbed.Must(t, err)
	resp, err := client.Do(req)
	testbed.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testbed.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			return value
		}
	}
	return ""
}
