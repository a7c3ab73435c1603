package remote

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/soheilhy/cmux"

	"github.com/berth-cri/berth/integration/testbed"
)

// shareSocket puts before a daemon's socket what CRI-O has in its own place: it
// takes a connection for gRPC only if the content type of its first call is
// exactly "application/grpc". It returns the shared socket.
func shareSocket(t *testing.T, daemon string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(daemon), "shared.sock")
	l, err := net.Listen("unix", path)
	testbed.Must(t, err)
	m := cmux.New(l)
	calls := m.MatchWithWriters(cmux.HTTP2MatchHeaderFieldSendSettings("content-type", "application/grpc"))
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Serve(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve the shared socket: %v", err)
		}
	})
	running.Go(func() {
		for {
			client, err := calls.Accept()
			if err != nil {
				return
			}
			go relay(client, daemon) // until its daemon or berth ends
		}
	})
	t.Cleanup(func() {
		m.Close()
		_ = l.Close()
		_ = os.Remove(path)
		running.Wait()
	})
	return path
}

// relay carries a connection to a daemon until either side ends it.
func relay(client net.Conn, daemon string) {
	defer client.Close()
	server, err := net.Dial("unix", daemon)
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // one side goes first
			ended <- struct{}{}
		}()
	}
	<-ended
}

// TestSharedSocket runs pods in daemons that share their sockets as CRI-O does.
func TestSharedSocket(t *testing.T) {
	outer := &bed{Bed: testbed.StartBed(t, "remote/busybox:1", testbed.Options{})}
	inner := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{outer.Registry},
	})
	outer.DropIn(t, "50-shared", fmt.Sprintf("[runtimes.shared]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+shareSocket(t, inner.Socket)))
	outer.ready(t, "shared")
	pod := outer.Client.RunPod(t, testbed.PodSpec{Handler: "shared", Image: outer.Image, Command: []string{"sleep", "3600"}})
	if got := pod.Container.Exec(t, "echo", "hello"); got != "hello\n" {
		t.Errorf("%q", got)
	}
	pod.Remove(t)
}
