package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var sandboxChecks = []check{
	{name: "run, status, list, stop, remove", run: sandboxLife},
	{name: "status echoes what was asked", run: sandboxEcho},
	{name: "verbose status has info", daemon: true, run: sandboxVerbose},
	{name: "verbose status has what scripts look for", run: sandboxScripts},
	{name: "stop and remove are idempotent", run: sandboxIdempotent},
	{name: "missing ids", daemon: true, run: sandboxMissing},
	{name: "remove takes running containers along", run: sandboxRemoveRunning},
	{name: "remove of a sandbox that was not stopped", berth: true, run: sandboxRemoveReady},
	{name: "stop leaves containers EXITED and listed", run: sandboxStopKeepsContainers},
	{name: "the same attempt is refused while it exists", daemon: true, run: sandboxSameAttempt},
	{name: "the same attempt is free after remove", daemon: true, run: sandboxAttemptAgain},
	{name: "the next attempt is another sandbox", daemon: true, run: sandboxNextAttempt},
	{name: "concurrent duplicates make one sandbox", daemon: true, run: sandboxDuplicates},
	{name: "an unused sandbox of a cancelled call does not block its name", run: sandboxCancelled},
	{name: "nil linux", run: sandboxNilLinux},
	{name: "nil security context and namespace options", run: sandboxNilSecurity},
	{name: "list filters", daemon: true, run: sandboxFilters},
	{name: "short ids", daemon: true, run: sandboxShortIDs},
	{name: "no container in a stopped sandbox", daemon: true, run: sandboxStoppedCreate},
	{name: "created_at grows with the attempts", daemon: true, run: sandboxCreatedAtGrows},
	{name: "UpdatePodSandboxResources", run: sandboxUpdateResources},
}

func sandboxLife(t *testing.T, n *node) {
	p := n.pod(t)
	if len(p.ID) != 64 || strings.Trim(p.ID, "0123456789abcdef") != "" {
		t.Errorf("sandbox id %q is not 64 hex characters: cAdvisor depends on it", p.ID)
	}
	st := p.status(t)
	testbed.Same(t, st.GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "after RunPodSandbox: state is")
	listed := n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: p.ID})
	if len(listed) != 1 || listed[0].GetState() != st.GetState() || listed[0].GetCreatedAt() != st.GetCreatedAt() {
		t.Errorf("list says %v, status says %v", listed, st)
	}
	p.stop(t)
	after := p.status(t)
	testbed.Same(t, after.GetState(), runtimeapi.PodSandboxState_SANDBOX_NOTREADY, "after StopPodSandbox: state is")
	testbed.Same(t, after.GetCreatedAt(), st.GetCreatedAt(), "created_at changed from %d to", st.GetCreatedAt())
	p.remove(t)
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: p.ID}), "still listed after RemovePodSandbox")
}

// oddLabels returns keys and values that a careless store would change. containerd allows at most
// 4096 bytes for a label.
func oddLabels() map[string]string {
	return map[string]string{
		"plain": "value", "empty": "", "dots.and/slash": "ünïcode ☃", "space": " lead and trail ",
		"quotes": `"'\` + "`", "newline": "a\nb\tc", "json": `{"a":[1,2]}`, "long": strings.Repeat("x", 4000),
		"io.kubernetes.cri.unknown": "kept", "angle": "<&>",
	}
}

func sandboxEcho(t *testing.T, n *node) {
	began := time.Now()
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Metadata.Attempt = 7
		c.Labels, c.Annotations = oddLabels(), oddLabels()
	})
	st := p.status(t)
	if !proto.Equal(st.GetMetadata(), p.Config.GetMetadata()) {
		t.Errorf("metadata is %v, sent %v", st.GetMetadata(), p.Config.GetMetadata())
	}
	sameMap(t, "labels", st.GetLabels(), p.Config.GetLabels())
	sameMap(t, "annotations", st.GetAnnotations(), p.Config.GetAnnotations())
	created := time.Unix(0, st.GetCreatedAt())
	if created.Before(began.Add(-time.Second)) || created.After(time.Now().Add(time.Second)) {
		t.Errorf("created_at is %v, called at %v", created, began)
	}
	if st.GetNetwork().GetIp() == "" {
		t.Error("no ip for a pod with a network of its own")
	}
	want := p.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if got := st.GetLinux().GetNamespaces().GetOptions(); !proto.Equal(got, want) {
		t.Errorf("namespace options are %v, sent %v: the kubelet would replace the sandbox", got, want)
	}
	item := n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: p.ID})[0]
	sameMap(t, "listed labels", item.GetLabels(), p.Config.GetLabels())
	sameMap(t, "listed annotations", item.GetAnnotations(), p.Config.GetAnnotations())
	if !proto.Equal(item.GetMetadata(), p.Config.GetMetadata()) {
		t.Errorf("listed metadata is %v, sent %v", item.GetMetadata(), p.Config.GetMetadata())
	}
}

func sameMap(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s differ:\n got %q\nwant %q", what, got, want)
	}
}

func sandboxVerbose(t *testing.T, n *node) {
	p := n.pod(t)
	for _, verbose := range []bool{false, true} {
		r, err := n.Runtime.PodSandboxStatus(call(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: verbose})
		must(t, err, "PodSandboxStatus")
		if got := len(r.GetInfo()) > 0; got != verbose {
			t.Errorf("verbose %v: info is %v", verbose, r.GetInfo())
		}
	}
}

// sandboxScripts finds a pod's network as scripts do: by the namespace's path, by a process, and by
// the result of the CNI plugins.
func sandboxScripts(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, sh("sleep 1000"))
	r, err := n.Runtime.PodSandboxStatus(call(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.ID, Verbose: true})
	must(t, err, "PodSandboxStatus")
	var info struct {
		PID         int
		RuntimeSpec struct {
			Linux struct{ Namespaces []struct{ Type, Path string } }
		}
		CNIResult map[string]json.RawMessage
	}
	testbed.Mustf(t, json.Unmarshal([]byte(r.GetInfo()["info"]), &info), "info")
	var interfaces map[string]struct{ IPConfigs []struct{ IP string } }
	if err := json.Unmarshal(info.CNIResult["Interfaces"], &interfaces); err != nil || len(interfaces["eth0"].IPConfigs) == 0 ||
		interfaces["eth0"].IPConfigs[0].IP != r.GetStatus().GetNetwork().GetIp() {
		t.Errorf("cniResult.Interfaces.eth0.IPConfigs[0].IP is not %q: %s, %v", r.GetStatus().GetNetwork().GetIp(), info.CNIResult["Interfaces"], err)
	}
	if info.PID == 0 {
		t.Error("pid is 0 beside a running container")
	}
	at := slices.IndexFunc(info.RuntimeSpec.Linux.Namespaces, func(ns struct{ Type, Path string }) bool { return ns.Type == "network" })
	if at < 0 {
		t.Fatalf("runtimeSpec.linux.namespaces has no network: %v", info.RuntimeSpec.Linux.Namespaces)
	}
	var byPath, byPID unix.Stat_t
	must(t, unix.Stat(info.RuntimeSpec.Linux.Namespaces[at].Path, &byPath), "stat of the namespace")
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/net", info.PID), &byPID), "stat of the process's namespace")
	testbed.Same(t, byPath.Ino, byPID.Ino, "pid %d is in network namespace %d, and runtimeSpec names", info.PID, byPID.Ino)
}

func sandboxIdempotent(t *testing.T, n *node) {
	p := n.pod(t)
	p.stop(t)
	p.stop(t)
	p.remove(t)
	p.remove(t)
	p.stop(t)
}

func sandboxMissing(t *testing.T, n *node) {
	missing := strings.Repeat("0123456789abcdef", 4)
	_, err := n.Runtime.PodSandboxStatus(call(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: missing})
	mustFail(t, err, "PodSandboxStatus of a missing id", codes.NotFound)
	_, err = n.Runtime.StopPodSandbox(call(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: missing})
	must(t, err, "StopPodSandbox of a missing id")
	_, err = n.Runtime.RemovePodSandbox(call(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: missing})
	must(t, err, "RemovePodSandbox of a missing id")
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: missing}), "a filter by a missing id listed")
}

func sandboxRemoveRunning(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	p.stop(t)
	p.remove(t)
	_, err := n.Runtime.ContainerStatus(call(t), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	mustFail(t, err, "ContainerStatus after RemovePodSandbox", codes.NotFound)
}

func sandboxRemoveReady(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	p.remove(t)
	_, err := n.Runtime.ContainerStatus(call(t), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID})
	mustFail(t, err, "ContainerStatus after RemovePodSandbox", codes.NotFound)
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: p.ID}), "still listed")
}

func sandboxStopKeepsContainers(t *testing.T, n *node) {
	p := n.pod(t)
	running := p.start(t, forever())
	ended := p.start(t, sh("exit 4"))
	ended.waitExit(t)
	p.stop(t)
	for _, c := range []*container{running, ended} {
		st := c.status(t)
		if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetFinishedAt() == 0 {
			t.Errorf("after StopPodSandbox a container is %v, finished at %d", st.GetState(), st.GetFinishedAt())
		}
	}
	testbed.Same(t, ended.status(t).GetExitCode(), 4, "the container that had ended has exit code")
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: p.ID}); len(got) != 2 {
		t.Errorf("%d containers listed, want 2", len(got))
	}
}

func sandboxSameAttempt(t *testing.T, n *node) {
	p := n.pod(t)
	r, err := n.Runtime.RunPodSandbox(call(t), &runtimeapi.RunPodSandboxRequest{Config: p.Config, RuntimeHandler: n.Handler})
	if err == nil && r.GetPodSandboxId() != p.ID {
		t.Fatalf("a second sandbox %s was made for the attempt that %s holds", r.GetPodSandboxId(), p.ID)
	}
	if got := n.listSandboxes(t, &runtimeapi.PodSandboxFilter{LabelSelector: p.Config.GetLabels()}); len(got) != 1 {
		t.Errorf("%d sandboxes for one attempt", len(got))
	}
}

func sandboxAttemptAgain(t *testing.T, n *node) {
	p := n.pod(t)
	p.stop(t)
	p.remove(t)
	again, err := n.tryPod(t, p.Config)
	must(t, err, "RunPodSandbox of the same attempt after remove")
	if again.ID == p.ID {
		t.Error("the id of a removed sandbox was used again")
	}
}

func sandboxNextAttempt(t *testing.T, n *node) {
	p := n.pod(t)
	p.stop(t)
	next := proto.Clone(p.Config).(*runtimeapi.PodSandboxConfig)
	next.Metadata.Attempt++
	second, err := n.tryPod(t, next)
	must(t, err, "RunPodSandbox of the next attempt")
	testbed.Same(t, second.status(t).GetMetadata().GetAttempt(), 1, "attempt is")
}

func sandboxDuplicates(t *testing.T, n *node) {
	cfg := n.podConfig(t)
	ids := make([]string, 6)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			if r, err := n.Runtime.RunPodSandbox(call(t), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: n.Handler}); err == nil {
				ids[i] = r.GetPodSandboxId()
			}
		})
	}
	wg.Wait()
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	if len(ids) == 0 {
		t.Fatal("none of the calls succeeded")
	}
	p := &pod{node: n, ID: ids[0], Config: cfg}
	t.Cleanup(func() { p.destroy(t) })
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) != 1 {
		t.Errorf("concurrent calls for one attempt made %d sandboxes", len(ids))
	}
	if got := n.listSandboxes(t, &runtimeapi.PodSandboxFilter{LabelSelector: cfg.GetLabels()}); len(got) != 1 {
		t.Errorf("%d sandboxes listed for one attempt", len(got))
	}
}

// sandboxCancelled cancels RunPodSandbox after various times. A sandbox that is left behind must be
// listed, so that a kubelet can remove it.
func sandboxCancelled(t *testing.T, n *node) {
	for _, after := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond} {
		cfg := n.podConfig(t)
		ctx, cancel := context.WithTimeout(context.Background(), after)
		_, _ = n.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: n.Handler})
		cancel()
		n.eventually(t, "the attempt can be made again after a call that was cut off after "+after.String(), func() bool {
			for _, left := range n.listSandboxes(t, &runtimeapi.PodSandboxFilter{LabelSelector: cfg.GetLabels()}) {
				(&pod{node: n, ID: left.GetId()}).destroy(t)
			}
			r, err := n.Runtime.RunPodSandbox(call(t), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: n.Handler})
			if err != nil {
				return false
			}
			(&pod{node: n, ID: r.GetPodSandboxId()}).destroy(t)
			return true
		})
	}
}

func sandboxNilLinux(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux = nil })
	if p.status(t).GetNetwork().GetIp() == "" {
		t.Error("no ip: an absent linux block means a pod network")
	}
	c := p.start(t, forever(), func(c *runtimeapi.ContainerConfig) { c.Linux = nil })
	testbed.Same(t, c.line(t, "echo", "works"), "works", "exec printed")
}

func sandboxNilSecurity(t *testing.T, n *node) {
	for _, linux := range []*runtimeapi.LinuxPodSandboxConfig{
		{}, {SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{}},
	} {
		p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux = linux })
		if p.status(t).GetNetwork().GetIp() == "" {
			t.Errorf("%v: no ip", linux)
		}
	}
}

func sandboxFilters(t *testing.T, n *node) {
	group := map[string]string{"group": n.podConfig(t).GetMetadata().GetUid()}
	var pods []*pod
	for _, role := range []string{"a", "b"} {
		pods = append(pods, n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
			c.Labels = map[string]string{"group": group["group"], "role": role}
		}))
	}
	pods[1].stop(t)
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	for name, c := range map[string]struct {
		filter *runtimeapi.PodSandboxFilter
		want   []int
	}{
		"group":                      {&runtimeapi.PodSandboxFilter{LabelSelector: group}, []int{0, 1}},
		"two labels":                 {&runtimeapi.PodSandboxFilter{LabelSelector: pods[0].Config.Labels}, []int{0}},
		"label value mismatch":       {&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"group": "other"}}, nil},
		"ready":                      {&runtimeapi.PodSandboxFilter{LabelSelector: group, State: ready}, []int{0}},
		"not ready":                  {&runtimeapi.PodSandboxFilter{LabelSelector: group, State: notReady}, []int{1}},
		"id and state that disagree": {&runtimeapi.PodSandboxFilter{Id: pods[0].ID, State: notReady}, nil},
		"id and label that disagree": {&runtimeapi.PodSandboxFilter{Id: pods[0].ID, LabelSelector: pods[1].Config.Labels}, nil},
		"short id":                   {&runtimeapi.PodSandboxFilter{Id: pods[1].ID[:13]}, []int{1}},
	} {
		want := map[string]bool{}
		for _, i := range c.want {
			want[pods[i].ID] = true
		}
		got := map[string]bool{}
		for _, s := range n.listSandboxes(t, c.filter) {
			got[s.GetId()] = true
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: listed %v, want %v", name, got, want)
		}
	}
}

func sandboxShortIDs(t *testing.T, n *node) {
	p := n.pod(t)
	short := &pod{node: n, ID: p.ID[:13], Config: p.Config}
	testbed.Same(t, short.status(t).GetId(), p.ID, "PodSandboxStatus by short id answered id")
	c := short.start(t, forever())
	full := c.ID
	c.ID = c.ID[:13]
	testbed.Same(t, c.status(t).GetId(), full, "ContainerStatus by short id answered id")
	testbed.Same(t, c.line(t, "echo", "short"), "short", "ExecSync by short id printed")
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID}); len(got) != 1 || got[0].GetPodSandboxId() != p.ID {
		t.Errorf("ListContainers by short id: %v", got)
	}
	if got := n.listContainers(t, &runtimeapi.ContainerFilter{PodSandboxId: short.ID}); len(got) != 1 {
		t.Errorf("ListContainers by short sandbox id: %v", got)
	}
	c.stop(t, time.Second)
	c.remove(t)
	short.stop(t)
	short.remove(t)
	testbed.Empty(t, n.listSandboxes(t, &runtimeapi.PodSandboxFilter{Id: p.ID}), "still listed after removal by short id")
}

func sandboxStoppedCreate(t *testing.T, n *node) {
	p := n.pod(t)
	created := p.create(t, forever())
	p.stop(t)
	_, err := p.tryCreate(t, p.containerConfig(forever()))
	mustFail(t, err, "CreateContainer in a stopped sandbox")
	mustFail(t, created.tryStart(t), "StartContainer in a stopped sandbox")
}

func sandboxCreatedAtGrows(t *testing.T, n *node) {
	cfg := n.podConfig(t)
	var last int64
	for attempt := range uint32(3) {
		next := proto.Clone(cfg).(*runtimeapi.PodSandboxConfig)
		next.Metadata.Attempt = attempt
		p, err := n.tryPod(t, next)
		must(t, err, "RunPodSandbox")
		at := p.status(t).GetCreatedAt()
		if at <= last {
			t.Fatalf("attempt %d was created at %d, the one before at %d", attempt, at, last)
		}
		last = at
		p.stop(t)
	}
}

func sandboxUpdateResources(t *testing.T, n *node) {
	p := n.pod(t)
	_, err := n.Runtime.UpdatePodSandboxResources(call(t), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.ID, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 64 << 20},
	})
	if err != nil {
		// Any other error makes the kubelet reject the resize.
		mustFail(t, err, "UpdatePodSandboxResources", codes.Unimplemented)
	}
}
