package forwarding

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// Metadata and deadlines of a call are the same on both sides of berth, and messages may be large.
func TestCallsAreWhole(t *testing.T) {
	n := startNode(t, startPeer(t, thisCRI(), "one", 1), startPeer(t, thisCRI(), "two", 1), "")
	t.Run("metadata", n.testMetadata)
	t.Run("deadlines", n.testDeadlines)
	t.Run("large messages", n.testLargeMessages)
	t.Run("large lists", n.testLargeLists)
}

func (n *node) testMetadata(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	heard := make(chan metadata.MD, 1)
	n.two.answer("ExecSync", func(c *call) error {
		md, _ := metadata.FromIncomingContext(c.ctx())
		heard <- md
		if err := c.SetHeader(metadata.Pairs("x-answer", "here", "x-bytes-bin", "\x00\xff")); err != nil {
			return err
		}
		c.SetTrailer(metadata.Pairs("x-end", "there"))
		return n.two.basically(c)
	})
	ctx := metadata.AppendToOutgoingContext(bounded(t), "x-thing", "a", "x-thing", "b", "x-bytes-bin", "\x00\x01", "traceparent", trace, "tracestate", "k=v")
	var header, trailer metadata.MD
	if _, err := n.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id('c', "two", 0)}, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
		t.Fatal(err)
	}
	md := <-heard
	for key, want := range map[string]string{"x-thing": "a,b", "x-bytes-bin": "\x00\x01", "traceparent": trace, "tracestate": "k=v"} {
		if got := strings.Join(md.Get(key), ","); got != want {
			t.Errorf("metadata %s arrived as %q, want %q", key, got, want)
		}
	}
	if header.Get("x-answer")[0] != "here" || header.Get("x-bytes-bin")[0] != "\x00\xff" || trailer.Get("x-end")[0] != "there" {
		t.Errorf("the client got the header %v and the trailer %v", header, trailer)
	}
}

func (n *node) testDeadlines(t *testing.T) {
	left := make(chan time.Duration, 1)
	n.two.answer("ExecSync", func(c *call) error {
		deadline, _ := c.ctx().Deadline()
		left <- time.Until(deadline)
		<-c.ctx().Done()
		return status.FromContextError(c.ctx().Err()).Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := n.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id('c', "two", 0)})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	if got := <-left; got <= 0 || got > 2*time.Second {
		t.Errorf("the deadline at the daemon was %v away, want at most 2s", got)
	}
}

// allowed is berth's limit for a message, in bytes.
const allowed = 80 << 20

func (n *node) testLargeMessages(t *testing.T) {
	heard := make(chan int, 1)
	n.two.answer("ExecSync", func(c *call) error {
		heard <- proto.Size(c.req)
		return c.SendMsg(&runtimeapi.ExecSyncResponse{ExitCode: 3})
	})
	client := runtimeapi.NewRuntimeServiceClient(n.conn)
	container := id('c', "two", 0)
	for _, size := range []int{79, 81} {
		req := &runtimeapi.ExecSyncRequest{ContainerId: container, Cmd: []string{strings.Repeat("x", size<<20)}}
		resp, err := client.ExecSync(bounded(t), req)
		if size<<20 < allowed {
			if err != nil || resp.GetExitCode() != 3 || <-heard != proto.Size(req) {
				t.Errorf("a request of %d MiB: %v, want it forwarded", size, err)
			}
		} else if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a request of %d MiB: %v, want resource exhausted", size, err)
		}
	}
	for _, size := range []int{79, 81} {
		n.two.answer("ContainerStatus", func(c *call) error {
			return c.SendMsg(&runtimeapi.ContainerStatusResponse{Info: map[string]string{"x": strings.Repeat("x", size<<20)}})
		})
		resp, err := client.ContainerStatus(bounded(t), &runtimeapi.ContainerStatusRequest{ContainerId: container})
		if size<<20 < allowed {
			if err != nil || len(resp.GetInfo()["x"]) != size<<20 {
				t.Errorf("an answer of %d MiB: %v, want it forwarded", size, err)
			}
		} else if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `handler "two"`) {
			t.Errorf("an answer of %d MiB: %v, want resource exhausted", size, err)
		}
	}
	n.two.answer("ContainerStatus", nil)
	if _, err := n.Client.ContainerStatus(bounded(t), &runtimeapi.ContainerStatusRequest{ContainerId: container}); err != nil {
		t.Errorf("a call after one that was too large: %v", err)
	}
}

// many is how many containers make a list of more than 20 MiB.
const many = 22 << 10

func (n *node) testLargeLists(t *testing.T) {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.PID()), []byte("5"), 0); err != nil { // resets the peak
		t.Fatal(err)
	}
	before := peak(t, n.PID())
	for _, p := range []*peer{n.one, n.two} {
		l := &runtimeapi.ListContainersResponse{}
		for i := range many {
			l.Containers = append(l.Containers, &runtimeapi.Container{
				Id: id('d', p.name, i), PodSandboxId: id('5', p.name, 0), Image: &runtimeapi.ImageSpec{Image: "i", RuntimeHandler: "runc"},
				Annotations: map[string]string{"a": strings.Repeat(p.name, 280)},
			})
		}
		encoded, err := proto.Marshal(l)
		testbed.Must(t, err)
		if len(encoded) < 20<<20 {
			t.Fatalf("the list has only %d bytes", len(encoded))
		}
		p.answer("ListContainers", func(c *call) error { return c.SendMsg(l) })
	}
	client := runtimeapi.NewRuntimeServiceClient(n.conn)
	// berth waits only two seconds for a peer's list, which can be too short on a busy machine.
	testbed.Eventually(t, patience, func() error {
		got, err := client.ListContainers(bounded(t), &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		handlers := map[string]int{}
		for _, c := range got.GetContainers() {
			handlers[c.GetImage().GetRuntimeHandler()]++
		}
		if handlers["one"] != many || handlers["two"] != many || len(got.GetContainers()) != 2*many {
			return fmt.Errorf("the numbers of containers by handler are %v", handlers)
		}
		return nil
	})
	stream, err := client.StreamContainers(bounded(t), &runtimeapi.StreamContainersRequest{})
	testbed.Must(t, err)
	streamed, largest := 0, 0
	for {
		part, err := stream.Recv()
		if err != nil {
			break
		}
		streamed += len(part.GetContainers())
		largest = max(largest, proto.Size(part))
	}
	if streamed != 2*many || largest > 2<<20 {
		t.Errorf("the stream has %d containers in messages of up to %d bytes", streamed, largest)
	}
	_, err = client.ContainerStatus(bounded(t), &runtimeapi.ContainerStatusRequest{ContainerId: id('d', "two", many-1)})
	testbed.Checkf(t, err, "status of one of many containers")
	after := peak(t, n.PID())
	t.Logf("with two lists of 21 MiB berth used up to %d MiB, before up to %d MiB", after, before)
	if after > 1200 { // three times the size of the lists, and the rest of the large messages
		t.Errorf("berth used up to %d MiB, want at most 1200", after)
	}
	for _, p := range []*peer{n.one, n.two} {
		p.answer("ListContainers", nil)
	}
}

// peak returns the largest memory use of a process, in MiB.
func peak(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	testbed.Must(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kB, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(value, "kB")))
			testbed.Must(t, err)
			return kB >> 10
		}
	}
	t.Fatal("the process has no VmHWM")
	return 0
}
