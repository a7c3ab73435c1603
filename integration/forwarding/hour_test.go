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

// hour is how often a kubelet makes each call in an hour with podsOfAPeer pods in each of two
// daemons: lists each second, the node's status every five seconds, statistics and file systems
// every ten, metrics every fifteen, images every thirty, and the status of each pod each minute.
var hour = map[string]int{
	"ListPodSandbox": 3600, "ListContainers": 3600, "PodSandboxStatus": 60 * 2 * podsOfAPeer, "ContainerStatus": 60 * 2 * podsOfAPeer,
	"Status": 720, "ListContainerStats": 360, "ListPodSandboxStats": 360, "ImageFsInfo": 360, "ListPodSandboxMetrics": 240,
	"ListImages": 120, "ImageStatus": 120, "Version": 60,
	"gone": 360, "events": 60, // calls with unknown IDs, and subscriptions
}

const podsOfAPeer = 15

// The calls that a kubelet repeats do not make berth grow: after an hour's calls, its heap and its
// goroutines are about what they were after a tenth of these calls.
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
	// With GOGC=20 garbage is collected early, so that the size of the heap is close to what is
	// in use.
	n := startNode(t, peers[0], peers[1], fmt.Sprintf("[metrics]\naddress = %q\n", "unix://"+socket), "GOGC=20")
	done := map[string]int{}
	n.poll(t, done, 10)
	early := measured(t, socket)
	n.poll(t, done, 100)
	late := measured(t, socket)
	t.Logf("after a tenth of an hour's calls %.0f goroutines and a heap of %.0f KiB, after all %.0f and %.0f KiB",
		early.goroutines, early.heap/1024, late.goroutines, late.heap/1024)
	if late.goroutines > early.goroutines+10 {
		t.Errorf("the number of goroutines grew from %.0f to %.0f", early.goroutines, late.goroutines)
	}
	if late.heap > 1.15*early.heap+512<<10 {
		t.Errorf("the heap grew from %.0f to %.0f bytes", early.heap, late.heap)
	}
}

// poll makes calls until that percentage of an hour's calls is done.
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
			return fmt.Errorf("status of an unknown container: %w, want not found", err)
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

// once encodes an answer only once, so that most of the work is berth's and not the peers'.
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

// hearing keeps the message that was sent.
type hearing struct {
	grpc.ServerStream
	said proto.Message
}

func (h *hearing) SendMsg(m any) error {
	h.said = m.(proto.Message)
	return nil
}

// weight is the size of a daemon.
type weight struct{ goroutines, heap float64 }

// measured returns the minimum of several readings of a daemon's metrics, to leave out what is
// temporary. The heap is measured by the size at which the next collection starts, which depends
// on what the last collection left.
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
	t.Fatalf("the daemon has no metric %s", metric)
	return 0
}
