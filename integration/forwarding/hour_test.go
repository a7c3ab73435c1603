package forwarding

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// hour is how often a kubelet makes each call in an hour with podsOfAPeer pods in
// each of two daemons: it lists each second, looks at each pod each minute, at
// statistics and file systems every ten seconds, at metrics every fifteen, at
// images every thirty, and at the node every five.
var hour = map[string]int{
	"ListPodSandbox": 3600, "ListContainers": 3600, "PodSandboxStatus": 60 * 2 * podsOfAPeer, "ContainerStatus": 60 * 2 * podsOfAPeer,
	"Status": 720, "ListContainerStats": 360, "ListPodSandboxStats": 360, "ImageFsInfo": 360, "ListPodSandboxMetrics": 240,
	"ListImages": 120, "ImageStatus": 120, "Version": 60,
	"gone": 360, "events": 60, // calls by ids that nobody has, and subscriptions
}

const podsOfAPeer = 15

// Nothing that a kubelet does again and again makes berth larger. The heap after a
// collection and the goroutines after an hour's calls are those after a tenth of it.
func TestAnHourOfPolls(t *testing.T) {
	peers := [2]*peer{startPeer(t, newerCRI(t), "one", podsOfAPeer), startPeer(t, thisCRI(), "two", podsOfAPeer)}
	for _, p := range peers {
		for name := range hour {
			p.answers[name] = once(p.basically)
		}
		for _, name := range []string{"ListContainerStats", "ListPodSandboxStats", "ListPodSandboxMetrics", "ListImages", "ImageFsInfo"} {
			p.answers[name] = once(p.fully)
		}
		p.answers["GetContainerEvents"] = func(c *call) error {
			if err := p.fully(c); err != nil {
				return err
			}
			<-c.ctx().Done()
			return c.ctx().Err()
		}
	}
	socket := filepath.Join(t.TempDir(), "metrics.sock")
	// Collections come early, so that what they leave can be told from what is
	// yet to be collected.
	n := startNode(t, peers[0], peers[1], fmt.Sprintf("[metrics]\naddress = %q\n", "unix://"+socket), "GOGC=20")
	done := map[string]int{}
	n.poll(t, done, 10)
	early := measured(t, socket)
	n.poll(t, done, 100)
	late := measured(t, socket)
	t.Logf("after a tenth of an hour's calls %.0f goroutines and a heap of %.0f KiB, after all %.0f and %.0f KiB",
		early.goroutines, early.heap/1024, late.goroutines, late.heap/1024)
	if late.goroutines > early.goroutines+10 {
		t.Errorf("%.0f goroutines have become %.0f", early.goroutines, late.goroutines)
	}
	if late.heap > 1.15*early.heap+512<<10 {
		t.Errorf("a heap of %.0f bytes has become one of %.0f", early.heap, late.heap)
	}
}

// poll makes calls until so much of an hour's are done, in percent.
func (n *node) poll(t *testing.T, done map[string]int, percent int) {
	t.Helper()
	for name, all := range hour {
		for ; done[name] < all*percent/100; done[name]++ {
			testbed.Mustf(t, n.pollOnce(t.Context(), name, done[name]), "%s", name)
		}
	}
}

func (n *node) pollOnce(ctx context.Context, name string, turn int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch name {
	case "gone":
		_, err := n.Client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id('e', "two", turn)})
		if status.Code(err) != codes.NotFound {
			return fmt.Errorf("a container that nobody has: %w", err)
		}
		return nil
	case "events":
		events, err := n.Client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		if err != nil {
			return err
		}
		_, err = events.Recv()
		return err
	}
	m := n.named(name)
	req := dynamicpb.NewMessage(m.Input())
	set(req, map[protoreflect.Name]string{"pod_sandbox_id": id('5', "two", turn%podsOfAPeer), "container_id": id('c', "two", turn%podsOfAPeer)})
	return n.conn.Invoke(ctx, path(m), req, &emptypb.Empty{})
}

// once has an answer be made once: of this hour's work berth's is to be the most.
func once(answer func(*call) error) func(*call) error {
	var mu sync.Mutex
	var said *emptypb.Empty
	return func(c *call) error {
		mu.Lock()
		defer mu.Unlock()
		if said == nil {
			heard := &hearing{ServerStream: c.ServerStream}
			if err := answer(&call{heard, c.method, c.req}); err != nil {
				return err
			}
			encoded, err := proto.Marshal(heard.said)
			if err != nil {
				return err
			}
			said = &emptypb.Empty{}
			said.ProtoReflect().SetUnknown(encoded)
		}
		return c.SendMsg(said)
	}
}

// hearing keeps what is said.
type hearing struct {
	grpc.ServerStream
	said proto.Message
}

func (h *hearing) SendMsg(m any) error {
	h.said = m.(proto.Message)
	return nil
}

// weight is what a daemon has taken.
type weight struct{ goroutines, heap float64 }

// measured is the least of some looks at a daemon's metrics: what is under way
// comes and goes. The heap is what the last collection has left, by the size at
// which the next begins.
func measured(t *testing.T, socket string) weight {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	var least weight
	for i := range 20 {
		now := weight{number(t, client, "go_goroutines"), number(t, client, "go_memstats_next_gc_bytes")}
		if i == 0 {
			least = now
		}
		least = weight{min(least.goroutines, now.goroutines), min(least.heap, now.heap)}
		time.Sleep(50 * time.Millisecond)
	}
	return least
}

func number(t *testing.T, client *http.Client, metric string) float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://berth/metrics", http.NoBody)
	testbed.Must(t, err)
	resp, err := client.Do(req)
	testbed.Must(t, err)
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), metric+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			testbed.Must(t, err)
			return value
		}
	}
	t.Fatalf("no metric %s", metric)
	return 0
}
