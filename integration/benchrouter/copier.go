package main

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/berth-cri/berth/integration/testbed"
)

// Each of these variables makes this program a hop: it has the socket to listen
// on, a colon, and the socket to connect to.
const (
	copierVariable = "BENCHROUTER_COPY"
	relayVariable  = "BENCHROUTER_RELAY"
)

// hops are what this program can be on the way to a daemon. What a call costs
// through the copier, which passes on bytes and knows nothing of what they mean, is
// what this machine takes for one more process on the way. Through the relay it is
// what gRPC takes for one more server and client.
var hops = map[string]func(from, to string) error{copierVariable: copyAll, relayVariable: relayAll}

// startHop starts a process that is on the way to a socket.
func startHop(t testbed.T, variable, to string) (socket string) {
	t.Helper()
	program, err := os.Executable()
	testbed.Mustf(t, err, "find this program")
	socket = filepath.Join(t.TempDir(), variable+".sock")
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), variable+"="+socket+":"+to)
	cmd.Stderr = os.Stderr
	testbed.Mustf(t, cmd.Start(), "start %s", variable)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return socket
}

// copyAll passes on the bytes of all connections, until it is killed.
func copyAll(from, to string) error {
	l, err := net.Listen("unix", from)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _ = copyOne(c, to) }() // the ends see that it is over
	}
}

func copyOne(c net.Conn, to string) error {
	defer c.Close()
	other, err := net.Dial("unix", to)
	if err != nil {
		return err
	}
	defer other.Close()
	var copying sync.WaitGroup
	errs := make([]error, 2)
	for i, ends := range [][2]net.Conn{{c, other}, {other, c}} {
		copying.Go(func() {
			_, errs[i] = io.Copy(ends[0], ends[1])
			_ = ends[0].Close()
		})
	}
	copying.Wait()
	return errors.Join(errs...)
}
