package live

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// A new binary under a running daemon changes its handler's capabilities: the verbose Status has
// the new capabilities, watchers receive them, and pods are refused by them.
func TestWhatAHandlerCanDoFollowsItsBinary(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	path := filepath.Join(b.Dir, "runtime")
	copyFile(t, testbed.Part(t, testbed.Runc), path)
	b.DropIn(t, "own", table("own", path))
	b.waitState(t, "own", "ready")
	admin, err := client.New(filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	testbed.Must(t, err)
	defer admin.Close()
	if _, err := admin.Probe(t.Context(), &adminv1.ProbeRequest{Name: "own", SelfCheck: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	heard, err := admin.WatchHandlers(ctx, &adminv1.WatchHandlersRequest{})
	testbed.Must(t, err)
	pid := b.PID()
	for _, step := range []struct {
		part      string
		isolation capability.Isolation
		want      map[capability.Name]capability.Known
	}{
		{testbed.Runc, capability.SharedKernel, map[capability.Name]capability.Known{
			capability.HostPID: {Answer: capability.Yes, Source: capability.Declared}, capability.Exec: {Answer: capability.Yes, Source: capability.Ran},
			capability.UserNamespaces: {Answer: capability.Yes, Source: capability.Ran}, capability.InPlaceResize: {Answer: capability.Yes, Source: capability.Ran},
		}},
		// The results of self-check pods of the previous binary are dropped.
		{testbed.Crun, capability.SharedKernel, map[capability.Name]capability.Known{
			capability.HostPID: {Answer: capability.Yes, Source: capability.Declared}, capability.Exec: {Answer: capability.Yes, Source: capability.Declared},
			capability.UserNamespaces: {Answer: capability.Yes, Source: capability.Declared},
		}},
		{testbed.Runsc, capability.UserSpaceKernel, map[capability.Name]capability.Known{
			capability.HostPID: {Answer: capability.No, Source: capability.Declared}, capability.Exec: {Answer: capability.Yes, Source: capability.Declared},
			capability.UserNamespaces: {Answer: capability.No, Source: capability.Declared},
		}},
	} {
		if step.part != testbed.Runc {
			if step.part == testbed.Runsc {
				for _, file := range testbed.CompanionsOfRunsc(t, filepath.Dir(testbed.Part(t, step.part))) {
					dir := filepath.Join(filepath.Dir(path), filepath.Base(filepath.Dir(file)))
					testbed.Must(t, os.MkdirAll(dir, 0o755))
					copyFile(t, file, filepath.Join(dir, filepath.Base(file)))
				}
			}
			copyFile(t, testbed.Part(t, step.part), path)
		}
		said := capability.Table{}
		fits := func(table capability.Table) error {
			if said = table; table.Isolation != step.isolation {
				return fmt.Errorf("under %s the isolation is %q, want %q", step.part, table.Isolation, step.isolation)
			}
			for n, want := range step.want {
				if got := table.Of(n); got.Answer != want.Answer || got.Source != want.Source {
					return fmt.Errorf("under %s, %s is %+v, want %+v", step.part, n, got, want)
				}
			}
			return nil
		}
		testbed.Eventually(t, patience, func() error {
			resp, all := b.status(t)
			for _, h := range resp.GetRuntimeHandlers() {
				users := all.of("own").Capabilities.Of(capability.UserNamespaces).Answer == capability.Yes
				if h.GetName() == "own" && h.GetFeatures().GetUserNamespaces() != users {
					return fmt.Errorf("RuntimeHandlers has %v, but the capabilities differ", h.GetFeatures())
				}
			}
			return fits(all.of("own").Capabilities)
		})
		// If the change never comes, the stream ends at the deadline of ctx.
		for {
			now, err := heard.Recv()
			if err != nil {
				t.Fatalf("the watcher did not receive the capabilities: %v; the last were %+v", err, said)
			}
			if fits(ownTable(now)) == nil {
				break
			}
		}
		b.refuses(t, "own", said)
	}
	if b.PID() != pid {
		t.Error("the daemon was restarted")
	}
}

func ownTable(now *adminv1.WatchHandlersResponse) capability.Table {
	for _, h := range now.GetHandlers() {
		if h.GetName() == "own" {
			return client.Capabilities(h)
		}
	}
	return capability.Table{}
}

// refuses fails unless exactly those pods are refused that need what the handler does not
// support.
func (b *bed) refuses(t *testing.T, handler string, table capability.Table) {
	t.Helper()
	ids := []*runtimeapi.IDMapping{{HostId: 1 << 20, Length: 1 << 16}}
	for n, options := range map[capability.Name]*runtimeapi.NamespaceOption{
		capability.HostPID:     {Pid: runtimeapi.NamespaceMode_NODE},
		capability.HostIPC:     {Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_NODE},
		capability.HostNetwork: {Pid: runtimeapi.NamespaceMode_CONTAINER, Network: runtimeapi.NamespaceMode_NODE},
		capability.UserNamespaces: {
			Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids},
		},
	} {
		config := b.Client.SandboxConfig("")
		if n == capability.HostNetwork {
			config.Hostname = "" // such a pod has the node's hostname
		}
		config.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: options}
		r, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if refused := err != nil; refused != (table.Of(n).Answer == capability.No) {
			t.Errorf("%s is %+v, but running a pod that needs it returns: %v", n, table.Of(n), err)
		}
		if err == nil {
			if _, err := b.Client.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: r.GetPodSandboxId()}); err != nil {
				t.Error(err)
			}
		}
	}
}
