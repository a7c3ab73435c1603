package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestNoNetworkConfiguration removes the CNI configuration: pods cannot start, except in
// the host network, but can be removed.
func TestNoNetworkConfiguration(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	testbed.Must(t, os.Remove(b.CNI.Path()))

	b.networkReady(t, false)
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
	testbed.Refused(t, err, codes.Unavailable, b.CNI.ConfDir)
	host := b.Client.RunPod(t, testbed.PodSpec{
		Image: b.Image, Command: []string{"sleep", "3600"},
		Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			c.Hostname = ""
			c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		},
		Container: func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		},
	})
	host.Remove(t)
	// The address is released with the configuration by which it was allocated.
	b.NothingLeft(t, atRest)

	testbed.Must(t, b.CNI.Write())
	b.networkReady(t, true)
	b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}).Remove(t)
	b.NothingLeft(t, atRest)
}

// networkReady waits until the condition NetworkReady has the status want. If the status is false,
// the condition must have a reason and a message.
func (b *bed) networkReady(t *testing.T, want bool) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		st, err := b.Client.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{})
		testbed.Must(t, err)
		var last *runtimeapi.RuntimeCondition
		for _, c := range st.GetStatus().GetConditions() {
			if c.GetType() == "NetworkReady" {
				last = c
			}
		}
		if last.GetStatus() == want && (want || last.GetReason() != "" && last.GetMessage() != "") {
			return nil
		}
		return fmt.Errorf("the condition NetworkReady is %v, want %v", last, want)
	})
}

// TestBadNetwork has the network fail while a pod is created. Nothing may be left.
func TestBadNetwork(t *testing.T) {
	b := newBed(t, testbed.Options{CNI: testbed.NewCNI(t)})
	atRest := b.Rest(t)
	good, err := os.ReadFile(b.CNI.Path())
	testbed.Must(t, err)
	type object = map[string]any
	var list struct {
		CNIVersion string   `json:"cniVersion"`
		Name       string   `json:"name"`
		Plugins    []object `json:"plugins"`
	}
	testbed.Must(t, json.Unmarshal(good, &list))
	healthy := list.Plugins
	for _, c := range []struct {
		name    string
		plugins []object
		text    string // in place of plugins
		code    codes.Code
		says    string
	}{
		{name: "no such plugin", plugins: append(healthy[:1:1], object{"type": "no-such-plugin"}), code: codes.Unavailable, says: "no-such-plugin"},
		// The first plugin has allocated an address when the second plugin fails.
		{name: "second fails", plugins: append(healthy[:1:1], object{"type": "tuning", "sysctl": object{"net.ipv4.no.such.thing": "1"}}), code: codes.Internal, says: "tuning"},
		// The subnet has two addresses, one of which is the gateway's.
		{name: "full subnet", plugins: []object{{
			"type": "bridge", "bridge": list.Name,
			"ipam": object{"type": "host-local", "ranges": [][]object{{{"subnet": "10.254.254.0/30"}}}, "dataDir": filepath.Join(t.TempDir(), "full")},
		}}, code: codes.Internal, says: "no IP addresses available"},
		{name: "no JSON", text: "{", code: codes.Unavailable, says: b.CNI.ConfDir},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := []byte(c.text)
			if c.text == "" {
				changed := list
				changed.Plugins = c.plugins
				var err error
				if text, err = json.Marshal(changed); err != nil {
					t.Fatal(err)
				}
			}
			testbed.Must(t, os.WriteFile(b.CNI.Path(), text, 0o600))
			ctx := testbed.Within(t, time.Minute)
			attempt := uint32(0)
			// The daemon reads a changed directory within a second, and the subnet
			// must first become full.
			testbed.Eventually(t, time.Minute, func() error {
				config := b.Client.SandboxConfig("")
				config.Metadata.Attempt = attempt
				attempt++
				_, err = b.Client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
				if err == nil || !strings.Contains(err.Error(), c.says) {
					return fmt.Errorf("the error is %w, want %q in it", err, c.says)
				}
				return nil
			})
			testbed.Refused(t, err, c.code, c.says)
		})
	}
	testbed.Must(t, b.CNI.Write())
	b.NothingLeft(t, atRest)
	b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}).Remove(t)
	b.NothingLeft(t, atRest)
}
