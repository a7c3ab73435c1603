// Command holder holds descriptors of many kinds, and prints their state in one line twice a
// second. Tests compare this line before and after a restore.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	h, err := hold()
	if err != nil {
		fail(err)
	}
	for tick := 1; ; tick++ {
		if _, err := fmt.Fprintf(os.Stdout, "tick %d %s\n", tick, h.state()); err != nil {
			fail(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func fail(err error) {
	_, _ = fmt.Fprintln(os.Stdout, "failed:", err) // the exit status also reports it
	os.Exit(1)
}

// held has the descriptors of the process.
type held struct {
	event, timer int
	unlinked     *os.File
	pipeIn       *os.File
	pipeOut      *bufio.Reader
	socket       string
	far          net.Conn
	memory       []byte // of System V
}

func hold() (_ *held, err error) {
	h := &held{socket: "/tmp/holder.sock"}
	if h.event, err = unix.Eventfd(7, 0); err != nil {
		return nil, err
	}
	if h.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0); err != nil {
		return nil, err
	}
	if err := unix.TimerfdSettime(h.timer, 0, &unix.ItimerSpec{Value: unix.Timespec{Sec: 3600}}, nil); err != nil {
		return nil, err
	}
	if h.unlinked, err = os.Create("/tmp/unlinked"); err != nil {
		return nil, err
	}
	if _, err := h.unlinked.WriteString("kept"); err != nil {
		return nil, err
	}
	if err := os.Remove("/tmp/unlinked"); err != nil {
		return nil, err
	}
	segment, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
	if err != nil {
		return nil, err
	}
	if h.memory, err = unix.SysvShmAttach(segment, 0, 0); err != nil {
		return nil, err
	}
	copy(h.memory, "shared")
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	h.pipeIn, h.pipeOut = in, bufio.NewReader(out)
	local, err := net.Listen("unix", h.socket)
	if err != nil {
		return nil, err
	}
	go echo(local)
	plain := &net.ListenConfig{}
	plain.SetMultipathTCP(false) // CRIU does not support it
	remote, err := plain.Listen(context.Background(), "tcp", ":7070")
	if err != nil {
		return nil, err
	}
	go echo(remote)
	h.far, err = net.Dial("tcp", "127.0.0.1:7070")
	return h, err
}

// echo answers each line with the same line.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			fail(err)
		}
		go func() {
			defer c.Close()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				if _, err := fmt.Fprintln(c, lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}

// asked returns the answer of an echo server, or "closed".
func asked(c net.Conn) string {
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return "closed"
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "closed"
	}
	return line[:len(line)-1]
}

func (h *held) state() string {
	count := make([]byte, 8)
	if _, err := unix.Read(h.event, count); err != nil {
		return "eventfd: " + err.Error()
	}
	if _, err := unix.Write(h.event, count); err != nil {
		return "eventfd: " + err.Error()
	}
	var left unix.ItimerSpec
	if err := unix.TimerfdGettime(h.timer, &left); err != nil {
		return "timerfd: " + err.Error()
	}
	text := make([]byte, 4)
	if _, err := h.unlinked.ReadAt(text, 0); err != nil {
		return "unlinked: " + err.Error()
	}
	if _, err := fmt.Fprintln(h.pipeIn, "through"); err != nil {
		return "pipe: " + err.Error()
	}
	line, err := h.pipeOut.ReadString('\n')
	if err != nil {
		return "pipe: " + err.Error()
	}
	local := "closed"
	if c, err := net.Dial("unix", h.socket); err == nil {
		local = asked(c)
		_ = c.Close() // its answer was read
	}
	return fmt.Sprintf("eventfd=%d timer=%t unlinked=%s pipe=%s socket=%s memory=%s connection=%s threads=%t",
		count[0], left.Value.Sec > 3000 && left.Value.Sec < 3600, text, line[:len(line)-1], local, h.memory[:len("shared")], asked(h.far), runtime.NumGoroutine() > 2)
}
