package shim

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// safeBuffer is a buffer that may be written while it is read.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Contains(s.b.Bytes(), []byte(text))
}

// The log of a shim is read as long as the shim's process runs, even if the connection to
// the shim breaks.
func TestLogOutlivesTheConnection(t *testing.T) {
	dir := stateDir(t)
	m := manager(t, dir, "/none")
	said := &safeBuffer{}
	m.ForeignShims.config.Log = log.L.Dup()
	m.ForeignShims.config.Log.Logger = &logrus.Logger{Out: said, Level: log.DebugLevel, Formatter: &logrus.TextFormatter{}, Hooks: logrus.LevelHooks{}}
	process := exec.Command("sleep", "3600")
	test.Must(t, process.Start())
	ended := sync.OnceFunc(func() { _, _ = process.Process.Kill(), process.Wait() })
	t.Cleanup(ended)
	since := test.Value(startTime(process.Process.Pid))(t)
	socket := filepath.Join(dir, "shim.sock")
	l := test.Value(net.Listen("unix", socket))(t)
	defer l.Close()
	ep := Endpoint{Address: "unix://" + socket, Protocol: "ttrpc", Version: 3, PID: process.Process.Pid, StartTime: since}
	c := test.Value(m.Foreign(t.Context(), ep))(t)
	test.Must(t, m.ReadLog(Start{Binary: "/shim", ID: "pod", Bundle: dir}, ep))
	says := func(text string) error {
		f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(text + "\n")
		return err
	}
	test.Must(t, says("before"))
	test.Eventually(t, "the log is read", func() bool { return said.has("before") })
	conn := test.Value(l.Accept())(t)
	test.Must(t, conn.Close())
	<-c.done
	for range 100 { // the reader must not stop a moment later either
		test.Mustf(t, says("after"), "write to the log after the connection broke")
		time.Sleep(time.Millisecond)
	}
	test.Eventually(t, "the log is read after the connection broke", func() bool { return said.has("after") })
	ended()
	test.Eventually(t, "the log of an exited shim is not read any more", func() bool { return errors.Is(says("gone"), unix.ENXIO) })
}
