package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berth-cri/berth/internal/test"
)

// asAgent calls the health service on the socket for agents.
func (b *bed) asAgent(t *testing.T) error {
	t.Helper()
	conn := test.Value(grpc.NewClient("unix://"+b.config.ContainerdAPI.Socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	_, err := healthapi.NewHealthClient(conn).Check(t.Context(), &healthapi.HealthCheckRequest{})
	return err
}

func TestAgentsAreServed(t *testing.T) {
	b := newBed(t)
	d := b.started(t)
	test.Check(t, b.asAgent(t))
	info, err := os.Stat(b.config.ContainerdAPI.Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the socket is %v, %v", info.Mode(), err)
	}
	test.Check(t, d.Stop(t.Context()))
	if _, err := os.Lstat(b.config.ContainerdAPI.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket still exists after Stop: %v", err)
	}
}

func TestWithoutASocketAgentsAreNotServed(t *testing.T) {
	b := newBed(t)
	socket := b.config.ContainerdAPI.Socket
	b.config.ContainerdAPI.Socket = ""
	b.started(t)
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket exists although it is not configured: %v", err)
	}
}

// If another process serves the socket, berth does not start and does not touch the socket.
func TestSocketOfAnotherContainerd(t *testing.T) {
	b := newBed(t)
	test.Must(t, os.MkdirAll(filepath.Dir(b.config.ContainerdAPI.Socket), 0o755))
	other := test.Value(net.Listen("unix", b.config.ContainerdAPI.Socket))(t)
	defer other.Close()
	err := b.daemon(t).Start(t.Context())
	test.Says(t, err, "containerd_api.socket", "another process is serving this socket (daemon.test, process "+strconv.Itoa(os.Getpid()))
	conn, err := net.Dial("unix", b.config.ContainerdAPI.Socket)
	test.Mustf(t, err, "connect to the other process")
	conn.Close()
	if _, err := os.Lstat(b.config.Server.Socket); !os.IsNotExist(err) {
		t.Errorf("the CRI socket exists although the start failed: %v", err)
	}
}

// A containerd that starts later replaces the socket. berth does not remove the new socket
// when it stops.
func TestSocketThatAnotherTookOver(t *testing.T) {
	b := newBed(t)
	d := b.started(t)
	test.Must(t, os.Remove(b.config.ContainerdAPI.Socket))
	other := test.Value(net.Listen("unix", b.config.ContainerdAPI.Socket))(t)
	defer other.Close()
	test.Check(t, d.Stop(t.Context()))
	conn, err := net.Dial("unix", b.config.ContainerdAPI.Socket)
	test.Mustf(t, err, "connect to the other process")
	conn.Close()
}
