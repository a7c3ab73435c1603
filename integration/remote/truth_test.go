package remote

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// everywhere are the handlers whose pods run in berth, in a containerd and in another berth.
var everywhere = []string{"runc", "legacy", "inner"}

// Answers about the whole node merge those of three daemons.
func TestOneNodeOfSeveralDaemons(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	inner := b.behind(t)
	t.Run("status", func(t *testing.T) { oneStatus(t, b, inner) })
	t.Run("pods", func(t *testing.T) { allPods(t, b) })
	t.Run("cgroup drivers", func(t *testing.T) { otherDriver(t, b) })
}

func oneStatus(t *testing.T, b *bed, inner *testbed.Berth) {
	told := b.status(t)
	var backends map[string]json.RawMessage
	if err := json.Unmarshal([]byte(told.GetInfo()["backends"]), &backends); err != nil || len(backends) != 3 {
		t.Fatalf("the backends are %s, %v, want 3", told.GetInfo()["backends"], err)
	}
	for name, d := range map[string]*testbed.Daemon{"legacy": b.other, "inner": inner.Daemon} {
		direct, err := d.Client.Status(t.Context(), &runtimeapi.StatusRequest{})
		testbed.Must(t, err)
		passed := &runtimeapi.StatusResponse{}
		testbed.Must(t, protojson.Unmarshal(backends["cri:"+d.Socket], passed))
		for _, c := range direct.GetStatus().GetConditions() {
			if !slices.ContainsFunc(passed.GetStatus().GetConditions(), func(p *runtimeapi.RuntimeCondition) bool { return proto.Equal(p, c) }) {
				t.Errorf("the status of %s lacks its condition %v", name, c)
			}
			if !slices.ContainsFunc(told.GetStatus().GetConditions(), func(p *runtimeapi.RuntimeCondition) bool { return p.GetType() == c.GetType() }) {
				t.Errorf("the node has no condition of the type %s", c.GetType())
			}
		}
		if len(passed.GetInfo()) == 0 {
			t.Errorf("the info of the verbose status of %s is missing", name)
		}
		if ours, theirs := featuresOf(told, name), featuresOf(direct, "runc"); ours == nil || !proto.Equal(ours, theirs) {
			t.Errorf("the features of %s are %v, but its daemon reports %v", name, ours, theirs)
		}
	}
	sameCapabilities(t, b, inner)
	types := map[string]bool{}
	for _, c := range told.GetStatus().GetConditions() {
		if types[c.GetType()] {
			t.Errorf("the node has two conditions of the type %s", c.GetType())
		}
		types[c.GetType()] = true
	}
	v, err := b.Client.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil || v.GetRuntimeName() != "berth" {
		t.Errorf("the node's version is %v, %v", v, err)
	}
}

// allPods fails unless "berth pods" shows the pods of all daemons.
func allPods(t *testing.T, b *bed) {
	wanted := map[string]string{}
	for _, handler := range everywhere {
		wanted[b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sleep", "86400"}}).ID] = handler
	}
	var shown struct {
		Pods []struct{ ID, Handler string }
	}
	testbed.Must(t, json.Unmarshal([]byte(b.berth(t, 0, "pods", "-o", "json")), &shown))
	for _, pod := range shown.Pods {
		if wanted[pod.ID] == pod.Handler {
			delete(wanted, pod.ID)
		}
	}
	if len(wanted) > 0 {
		t.Errorf("berth pods shows %v, and lacks %v", shown, wanted)
	}
}

// sameCapabilities waits until the handler inner has the capabilities that its berth reports, and
// legacy exactly those that its containerd reports as features.
func sameCapabilities(t *testing.T, b *bed, inner *testbed.Berth) {
	t.Helper()
	// Both berths have just started, and may not know all capabilities yet.
	testbed.Eventually(t, patience, func() error {
		direct, err := inner.Client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			return err
		}
		told := b.status(t)
		theirs, ours := capabilitiesOf(t, direct)["runc"], capabilitiesOf(t, told)
		if theirs.Isolation != capability.SharedKernel || !reflect.DeepEqual(ours["inner"], theirs) {
			return fmt.Errorf("the inner berth reports the capabilities\n%+v\nbut berth has\n%+v", theirs, ours["inner"])
		}
		legacy, says := ours["legacy"], featuresOf(told, "legacy")
		if legacy.Isolation != "" || len(legacy.Capabilities) != 2 ||
			(legacy.Of(capability.UserNamespaces).Answer == capability.Yes) != says.GetUserNamespaces() ||
			(legacy.Of(capability.RecursiveReadOnlyMounts).Answer == capability.Yes) != says.GetRecursiveReadOnlyMounts() {
			return fmt.Errorf("containerd reports %v, but berth has %+v", says, legacy)
		}
		return nil
	})
}

// capabilitiesOf returns the capabilities of handlers from a berth's verbose status.
func capabilitiesOf(t *testing.T, s *runtimeapi.StatusResponse) map[string]capability.Table {
	t.Helper()
	var all struct {
		Handlers []struct {
			Name         string
			Capabilities capability.Table
		}
	}
	testbed.Must(t, json.Unmarshal([]byte(s.GetInfo()["handlers"]), &all))
	by := map[string]capability.Table{}
	for _, h := range all.Handlers {
		by[h.Name] = h.Capabilities
	}
	return by
}

func featuresOf(s *runtimeapi.StatusResponse, handler string) *runtimeapi.RuntimeHandlerFeatures {
	for _, h := range s.GetRuntimeHandlers() {
		if h.GetName() == handler {
			return h.GetFeatures()
		}
	}
	return nil
}

// otherDriver adds a containerd that uses the cgroup driver systemd: its handler is not ready.
func otherDriver(t *testing.T, b *bed) {
	other := testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, DefaultRuntime: "runc", SystemdCgroup: true,
		CNI: testbed.NewCNI(t), Registry: b.Registry,
	})
	b.DropIn(t, "50-systemd", fmt.Sprintf("[runtimes.systemd]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+other.Socket))
	const reason = "uses the cgroup driver systemd, but berth uses cgroupfs"
	testbed.Eventually(t, patience, func() error {
		for _, c := range b.status(t).GetStatus().GetConditions() {
			if c.GetType() == "HandlersReady" && !c.GetStatus() && strings.Contains(c.GetMessage(), reason) && strings.Contains(c.GetMessage(), other.Socket) {
				return nil
			}
		}
		return fmt.Errorf("the node's status is %v", b.status(t).GetStatus())
	})
	if b.announces(t, "systemd") {
		t.Error("the handler is listed in Status")
	}
	_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: "systemd"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), reason) {
		t.Errorf("run a pod of the handler: %v, want unavailable", err)
	}
	config, err := b.Client.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil || config.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("the node's cgroup driver is %v, %v, want cgroupfs", config, err)
	}
}
