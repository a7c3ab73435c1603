package podcheckpoint

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// served returns the page of a pod's server.
func (p *pod) served(t *testing.T) string {
	t.Helper()
	return page(t, p.IP(t)+":8080")
}

func page(t *testing.T, server string) string {
	t.Helper()
	var text string
	testbed.Eventually(t, patience, func() error {
		client := &http.Client{Timeout: 5 * time.Second}
		r, err := client.Get("http://" + server + "/page")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s", r.Status)
		}
		text = string(b)
		return err
	})
	return text
}

// TestRestoredPodIsLikeAnyOther: the server of a restored pod listens at the pod's new address.
// Exec, statistics, limits, logs, stop and OOM kill work as in any pod.
func TestRestoredPodIsLikeAnyOther(t *testing.T) {
	b := newBed(t, testbed.Options{})
	b.Client.Pull(t, gvisor, b.Image)
	volume := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(volume, "page"), []byte("before"), 0o600))
	p := &pod{Pod: b.Client.RunSandbox(t, testbed.PodSpec{Handler: gvisor})}
	m := &member{}
	m.Container = p.RunContainer(t, "web", testbed.PodSpec{
		Image: b.Image, Command: []string{"sh", "-c", "trap 'echo asked to end; exit 3' TERM; mkdir /w; cp /volume/page /w; httpd -p 8080 -h /w; echo serving; until [ -e /eat ]; do sleep 0.1; done; exec tail /dev/zero"},
		Container: func(c *runtimeapi.ContainerConfig) {
			m.config = c
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", HostPath: volume, Readonly: true}}
			c.Linux.Resources.MemoryLimitInBytes = 128 << 20
		},
	})
	p.members = []*member{m}
	m.WaitLog(t, "serving")
	if got := p.served(t); got != "before" {
		t.Fatalf("the pod serves %q", got)
	}
	dir := p.checkpointed(t)
	p.Remove(t)
	testbed.Must(t, os.WriteFile(filepath.Join(volume, "page"), []byte("after"), 0o600))
	// The kubelet computes oom_score_adj from the node's memory, so it may differ on another node.
	m.config.Linux.Resources.OomScoreAdj = 500
	again := b.restored(t, p, dir)
	if got := again.served(t); got != "before" {
		t.Errorf("the restored pod serves %q", got)
	}
	c := again.members[0].Container
	if got := c.Exec(t, "cat", "/volume/page", "/w/page"); got != "afterbefore" {
		t.Errorf("the files of the volume and the container are %q", got)
	}
	if got := b.forwarded(t, again); got != "before" {
		t.Errorf("through a port-forward the restored pod serves %q", got)
	}
	stats, err := b.Client.ContainerStats(testbed.Within(t, patience), &runtimeapi.ContainerStatsRequest{ContainerId: c.ID})
	if err != nil || stats.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 || stats.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("statistics: %v, %v", stats, err)
	}
	if got := c.Status(t).GetResources().GetLinux().GetMemoryLimitInBytes(); got != 128<<20 {
		t.Errorf("the memory limit is %d", got)
	}
	c.Stop(t, patience)
	if st := c.Status(t); st.GetExitCode() != 3 {
		t.Errorf("the stopped container exited with %d, %s, want 3", st.GetExitCode(), st.GetMessage())
	}
	c.WaitLog(t, "asked to end")

	r := b.request(p, dir)
	testbed.LimitMemory(t, r.GetConfig().GetLinux().GetCgroupParent(), 192<<20) // at which gVisor's processes are killed
	_, containers, err := b.Client.TryRestore(t, r)
	testbed.Must(t, err)
	greedy := containers[0]
	greedy.Start(t)
	greedy.Exec(t, "touch", "/eat")
	if st := greedy.WaitExit(t); st.GetExitCode() != 137 || st.GetReason() != "OOMKilled" {
		t.Errorf("out of memory, the container exited with %d, %s, want 137, OOMKilled", st.GetExitCode(), st.GetReason())
	}
}

// forwarded returns the page of the pod's server through a port-forward.
func (b *bed) forwarded(t *testing.T, p *pod) string {
	t.Helper()
	r := value(b.Client.PortForward(testbed.Within(t, patience), &runtimeapi.PortForwardRequest{PodSandboxId: p.ID, Port: []int32{8080}}))(t)
	at := value(url.Parse(r.GetUrl()))(t)
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	testbed.Must(t, err)
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	forwarder := value(portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard))(t)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
		defer func() {
			close(stop)
			testbed.Checkf(t, <-ended, "stop the port-forward")
		}()
	case err := <-ended:
		t.Fatalf("port-forward: %v", err)
	}
	ports := value(forwarder.GetPorts())(t)
	return page(t, fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
}

// TestVolumeIsAnother: a restored container that had a file of a volume open does not start if the
// volume has no such file. The error names the file, and the pod can be removed.
func TestVolumeIsAnother(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	b.Client.Pull(t, gvisor, b.Image)
	p, m := &pod{Pod: b.Client.RunSandbox(t, testbed.PodSpec{Handler: gvisor})}, &member{}
	m.Container = p.RunContainer(t, "main", testbed.PodSpec{
		Image: b.Image, Command: []string{"sh", "-c", "exec 5>>/volume/data; echo open; while :; do echo x >&5; sleep 0.1; done"},
		Container: func(c *runtimeapi.ContainerConfig) {
			m.config = c
			c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", HostPath: t.TempDir()}}
		},
	})
	p.members = []*member{m}
	m.WaitLog(t, "open")
	dir := p.checkpointed(t)
	m.config.Mounts[0].HostPath = t.TempDir()
	made := b.created(t, p, b.request(p, dir))
	err := b.tryStart(t, made.members[0])
	testbed.Refused(t, err, codes.Unknown, "data", "/volume", "no such file")
	if got := made.members[0].WaitExit(t); got.GetReason() != "StartError" {
		t.Errorf("the container exited with %s, %s, want StartError", got.GetReason(), got.GetMessage())
	}
	made.Remove(t)
	p.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestSleepAndWakeAgainAndAgain checkpoints and restores a pod, and then each restored pod, twenty
// times in all. The checkpoints do not grow, and nothing is left on the host.
func TestSleepAndWakeAgainAndAgain(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	p := b.run(t, "one", "two")
	p.reaches(t, 2)
	var first int64
	for i := range 20 {
		written := min(p.members[0].count(t), p.members[1].count(t))
		dir := p.checkpointed(t)
		size := int64(0)
		for _, name := range files(t, dir) {
			info := value(os.Stat(filepath.Join(dir, name)))(t)
			if info.Mode().IsRegular() {
				size += info.Size()
			}
		}
		if i == 2 {
			first = size
		}
		if i > 2 && size > first*3/2 {
			t.Errorf("the checkpoint of cycle %d has %d bytes, that of the third had %d", i+1, size, first)
		}
		p.Remove(t)
		p = b.restored(t, p, dir)
		p.reaches(t, written)
		testbed.Must(t, os.RemoveAll(dir))
	}
	p.Remove(t)
	b.NothingLeft(t, atRest)
}
