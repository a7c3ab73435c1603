package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// streams checks attach, logs, exec, cp and port-forward of kubectl under every class.
func (b *bed) streams(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		n.CreateOf(t, class.name, `
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    stdin: true
    command: [sh, -c, 'mkdir /www; echo from CLASS > /www/index.html; httpd -p 8080 -h /www; echo started; while read line; do echo "got $line"; done; sleep 3600']
`)
	}
	for _, class := range b.classes {
		t.Run(class.name, func(t *testing.T) {
			n.WaitReady(t, class.name)
			n.session(t, "logs", "--follow", class.name).wait(t, "started") // by then the server runs
			for name, check := range map[string]func(*testing.T, *Namespace, string){
				"attach and logs": attachAndLogs, "attach once": attachOnce, "exec": execStreams, "terminal": execTerminal, "copy": copyFiles, "port-forward": portForward,
			} {
				t.Run(name, func(t *testing.T) { check(t, n, class.name) })
			}
		})
	}
}

// attachAndLogs writes lines to an attached container, and waits for the answers in the attach
// session and in a followed log.
func attachAndLogs(t *testing.T, n *Namespace, pod string) {
	follow := n.session(t, "logs", "--follow", pod)
	follow.wait(t, "started")
	attached := n.session(t, "attach", "--stdin", "--quiet", pod)
	for i := range 3 {
		line := fmt.Sprintf("line %d", i)
		attached.write(t, line+"\n")
		attached.wait(t, "got "+line)
		follow.wait(t, "got "+line)
	}
	attached.hangUp(t)
	testbed.Same(t, n.Kubectl(t, "logs", "--tail=1", pod), "got line 2\n", "the last line of the log is")
	if since := n.Kubectl(t, "logs", "--timestamps", "--since=10m", pod); strings.Count(since, "Z got line ") != 3 {
		t.Errorf("the log with timestamps:\n%s", since)
	}
}

// attachOnce writes 1 MiB to a container with stdinOnce, and closes its standard input. The
// container must receive all of it and then EOF.
func attachOnce(t *testing.T, n *Namespace, class string) {
	name := class + "-once"
	n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  runtimeClassName: %s
  restartPolicy: Never
  containers: [{name: main, image: IMAGE, stdin: true, stdinOnce: true, command: [sh, -c, 'echo ready; sleep 1; wc -c']}]
`, name, class))
	n.session(t, "logs", "--follow", "--pod-running-timeout=1m", name).wait(t, "ready")
	stdout, stderr, err := n.TryKubectl(t, strings.Repeat("0123456789abcde\n", 1<<16), "attach", "--stdin", "--quiet", name)
	if err != nil || stdout != "1048576\n" {
		t.Errorf("the container counted %q: %v: %s", stdout, err, stderr)
	}
	n.WaitPhase(t, name, corev1.PodSucceeded)
}

func execStreams(t *testing.T, n *Namespace, pod string) {
	stdout, stderr, err := n.TryKubectl(t, "", "exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("kubectl exec returned %v, want exit code 7", err)
	}
	if stdout != "out\n" || !strings.HasPrefix(stderr, "err\n") {
		t.Errorf("stdout is %q, stderr is %q", stdout, stderr)
	}
	// 2 MiB, more than any pipe or flow-control window on the way holds.
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	echo, _, err := n.TryKubectl(t, string(body), "exec", "--stdin", pod, "--", "cat")
	if err != nil || echo != string(body) {
		t.Errorf("wrote %d bytes, %d came back: %v", len(body), len(echo), err)
	}
	_, stderr, err = n.TryKubectl(t, "", "exec", pod, "--", "/no/such/program")
	if err == nil || !strings.Contains(stderr, "/no/such/program") {
		t.Errorf("exec of a missing program: %v: %q", err, stderr)
	}
}

// execTerminal runs a shell on a terminal, and changes the size of the window.
func execTerminal(t *testing.T, n *Namespace, pod string) {
	master, path, err := console.NewPty()
	testbed.Must(t, err)
	defer master.Close()
	slave, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	testbed.Must(t, err)
	defer slave.Close()
	testbed.Must(t, master.Resize(console.WinSize{Width: 111, Height: 33}))
	command := n.cluster.kubectlCommand(t.Context(), t, "--namespace="+n.Name, "exec", "--stdin", "--tty", "--quiet", pod, "--", "sh")
	command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	s := &session{command: command, stdin: master, lines: make(chan string, 1000)}
	s.start(t, master)
	s.write(t, "[ -t 0 ] && stty size; echo is $((40+2))\n")
	s.wait(t, "33 111")
	s.wait(t, "is 42")
	testbed.Must(t, master.Resize(console.WinSize{Width: 80, Height: 24}))
	// The new size passes through four programs, so it may arrive late.
	testbed.Eventually(t, patience, func() error {
		s.write(t, "stty size; echo end of size\n")
		if size := s.until(t, "end of size"); !strings.Contains(size, "24 80") {
			return fmt.Errorf("the size is %q", size)
		}
		return nil
	})
	s.write(t, "exit 5\n")
	var exit *exec.ExitError
	if err := s.end(t); !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("kubectl exec returned %v, want exit code 5", err)
	}
}

// copyFiles copies a directory into a container and back.
func copyFiles(t *testing.T, n *Namespace, pod string) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "back")
	bodies := map[string][]byte{"small": []byte("small\n"), "large": bytes.Repeat([]byte{0, 1, 2, 0xff}, 1<<19)}
	for name, body := range bodies {
		testbed.Must(t, os.WriteFile(filepath.Join(from, name), body, 0o600))
	}
	n.Kubectl(t, "cp", from, pod+":/tmp/copied")
	n.Kubectl(t, "cp", pod+":/tmp/copied", to)
	for name, body := range bodies {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(got, body) {
			t.Errorf("file %s came back changed, with %d bytes: %v", name, len(got), err)
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(body))
		if inside := n.Exec(t, pod, "sha256sum", "/tmp/copied/"+name); !strings.HasPrefix(inside, sum) {
			t.Errorf("sha256 of file %s in the container: %s, want %s", name, inside, sum)
		}
	}
}

// portForward forwards a port of a server, and one on which nothing listens: kubectl must report
// that the connection was refused.
func portForward(t *testing.T, n *Namespace, pod string) {
	forward := func(port string) (*session, string) {
		s := n.session(t, "port-forward", "pod/"+pod, ":"+port)
		_, rest, _ := strings.Cut(s.wait(t, "Forwarding from 127.0.0.1:"), "127.0.0.1:")
		local, _, _ := strings.Cut(rest, " ")
		return s, "http://127.0.0.1:" + local + "/"
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	_, server := forward("8080")
	for range 3 {
		response, err := client.Get(server)
		testbed.Must(t, err)
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != "from "+pod+"\n" {
			t.Errorf("the pod answered %q: %v", body, err)
		}
	}
	s, nobody := forward("8079")
	if response, err := client.Get(nobody); err == nil {
		response.Body.Close()
		t.Errorf("a port on which nothing listens answered %s", response.Status)
	}
	s.wait(t, "refused")
}

// session is a kubectl that runs until it is stopped.
type session struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	lines   chan string // closed at the end of its output
	seen    []string
	done    chan struct{}
	err     error
	stop    context.CancelFunc
}

// session starts a kubectl whose standard input stays open. A cleanup kills it.
func (n *Namespace) session(t *testing.T, arguments ...string) *session {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &session{
		command: n.cluster.kubectlCommand(ctx, t, append([]string{"--namespace=" + n.Name}, arguments...)...),
		lines:   make(chan string, 1000), stop: stop,
	}
	stdin, err := s.command.StdinPipe()
	testbed.Must(t, err)
	output, write, err := os.Pipe()
	testbed.Must(t, err)
	s.stdin, s.command.Stdout, s.command.Stderr = stdin, write, write
	s.start(t, output)
	write.Close()
	return s
}

// start starts the command, and reads the lines of its output.
func (s *session) start(t *testing.T, output io.ReadCloser) {
	t.Helper()
	testbed.Must(t, s.command.Start())
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		s.err = s.command.Wait()
	}()
	go func() {
		defer close(s.lines)
		scanner := bufio.NewScanner(output)
		for scanner.Scan() {
			s.lines <- strings.TrimRight(scanner.Text(), "\r")
		}
	}()
	t.Cleanup(func() {
		if s.stop != nil {
			s.stop()
		} else {
			_ = s.command.Process.Kill()
		}
		<-s.done
		output.Close()
	})
}

func (s *session) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(s.stdin, text); err != nil {
		t.Fatalf("write to kubectl: %v", err)
	}
}

// wait reads lines until one has the text, and returns it.
func (s *session) wait(t *testing.T, text string) string {
	t.Helper()
	lines := strings.Split(s.until(t, text), "\n")
	return lines[len(lines)-1]
}

// until reads lines until one has the text, and returns them all.
func (s *session) until(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(patience)
	begin := len(s.seen)
	for {
		select {
		case line, open := <-s.lines:
			if !open {
				t.Fatalf("the output of %v ended without %q:\n%s", s.command.Args[1:], text, strings.Join(s.seen, "\n"))
			}
			s.seen = append(s.seen, line)
			// A terminal also shows the typed commands, which have "echo".
			if strings.Contains(line, text) && !strings.Contains(line, "echo ") {
				return strings.Join(s.seen[begin:], "\n")
			}
		case <-timeout:
			t.Fatalf("%v did not print %q in time:\n%s", s.command.Args[1:], text, strings.Join(s.seen, "\n"))
		}
	}
}

// hangUp closes the standard input of kubectl and waits until it exits with 0.
func (s *session) hangUp(t *testing.T) {
	t.Helper()
	testbed.Must(t, s.stdin.Close())
	testbed.Checkf(t, s.end(t), "%v", s.command.Args[1:])
}

// end waits until kubectl exits, and returns its error.
func (s *session) end(t *testing.T) error {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		t.Fatalf("%v did not exit in time:\n%s", s.command.Args[1:], strings.Join(s.seen, "\n"))
	}
	return s.err
}
