// Package cli works a real `berth serve` as an operator does: by the commands of
// the berth binary, beside pods on real runtimes.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// commandTimeout is far above what any command here takes.
const commandTimeout = time.Minute

// node is a berth whose one handler at first is runc, and an operator at it.
type node struct{ *testbed.Bed }

func newNode(t *testing.T) *node {
	t.Helper()
	// What a command does must be its own doing.
	n := &node{testbed.StartBed(t, "cli/busybox:1", testbed.Options{Config: "[handlers]\nwatch = false\n"})}
	n.Client.Pull(t, "", n.Image)
	return n
}

func (n *node) socket() string { return filepath.Join(filepath.Dir(n.Socket), "admin.sock") }

// command is berth with arguments, for this node.
func (n *node) command(ctx context.Context, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(n.Bin, "berth"), arguments...)
	cmd.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+n.socket())
	return cmd
}

// berth runs a command, which must end with that status, and returns what it wrote.
func (n *node) berth(t *testing.T, want int, arguments ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	return n.ran(t, want, n.command(ctx, arguments...))
}

// classes is berth for the plugin that has the commands about classes.
func (n *node) classes(t *testing.T, want int, arguments ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	return n.ran(t, want, exec.CommandContext(ctx, filepath.Join(n.Bin, "kubectl-berth"), arguments...))
}

func (n *node) ran(t *testing.T, want int, cmd *exec.Cmd) (stdout, stderr string) {
	t.Helper()
	var out, mistakes bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &mistakes
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code != want {
		t.Fatalf("%s: exit status %d, want %d\n%s%s", strings.Join(cmd.Args, " "), code, want, out.String(), mistakes.String())
	}
	return out.String(), mistakes.String()
}

// has fails unless text has every word.
func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("lacks %q:\n%s", w, text)
		}
	}
}

// handlers is what "berth handlers" has of one, as JSON.
func (n *node) handler(t *testing.T, name string) map[string]any {
	t.Helper()
	out, _ := n.berth(t, 0, "handlers", "-o", "json")
	var list struct {
		Handlers []map[string]any `json:"handlers"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, h := range list.Handlers {
		if h["name"] == name {
			return h
		}
	}
	return nil
}

// TestAHandlersLifeByCommands adds a handler, runs a pod under it, cordons,
// uncordons, changes, drains and removes it.
func TestAHandlersLifeByCommands(t *testing.T) {
	n := newNode(t)
	crun := testbed.Part(t, testbed.Crun)
	out, _ := n.berth(t, 0, "status")
	has(t, out, "1 of 1 handlers accept pods, 0 pods")

	out, _ = n.berth(t, 0, "handler", "add", "other", "--path", crun)
	has(t, out, "handler other is added", "50-other.toml", "ready, crun ")
	var now struct{ Generation string }
	out, _ = n.berth(t, 0, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &now); err != nil || now.Generation < "2" {
		t.Fatalf("the generation is %q, %v", now.Generation, err)
	}
	pod := n.Client.RunPod(t, testbed.PodSpec{Handler: "other", Image: n.Image, Command: []string{"sleep", "600"}})

	out, _ = n.berth(t, 0, "pods", "-o", "wide")
	has(t, out, "GENERATION", " "+now.Generation+" ", "SNAPSHOTTER", " overlayfs ")
	out, _ = n.berth(t, 0, "pods", "--handler", "other")
	has(t, out, pod.ID[:12], "other", "current")
	out, _ = n.berth(t, 0, "pods", "--handler", "other", "-q")
	testbed.Same(t, out, pod.ID+"\n", "the IDs are")
	out, _ = n.berth(t, 0, "handlers", "--no-headers")
	if strings.Contains(out, "STATE") || !strings.Contains(out, "other ") {
		t.Errorf("without a header it is\n%s", out)
	}
	out, _ = n.berth(t, 0, "pods", "--slow", "-o", "wide")
	has(t, out, pod.ID, "sandbox ", "network ", "runtime ", "create main ", "rootfs ", "start main ")
	out, _ = n.berth(t, 0, "pods", "--slow", "--handler", "runc")
	if strings.Contains(out, pod.ID[:12]) {
		t.Errorf("a pod of another handler: %s", out)
	}
	for _, id := range []string{pod.ID, pod.ID[:10], pod.Container.ID[:10], "berth://" + pod.Container.ID} {
		out, _ = n.berth(t, 0, "whereis", id)
		has(t, out, "sandbox:    "+pod.ID, "handler:    other", "generation: "+now.Generation+"\n", "binary:     "+crun, "runs:       "+n.Root+"/tools/runtime-", "sha256:     ", "current:")
	}
	_, stderr := n.berth(t, 1, "whereis", "nothing")
	has(t, stderr, `no sandbox or container has an ID with the prefix "nothing"`)

	out, _ = n.berth(t, 0, "handler", "cordon", "other", "--reason", "disk is being replaced")
	has(t, out, "handler other is cordoned: disk is being replaced")
	_, err := n.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.Client.SandboxConfig(""), RuntimeHandler: "other"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "disk is being replaced") {
		t.Errorf("a pod of a cordoned handler: %v", err)
	}
	if text := pod.Container.Exec(t, "echo", "alive"); strings.TrimSpace(text) != "alive" {
		t.Errorf("the pod of a cordoned handler says %q", text)
	}
	n.Restart(t)
	if h := n.handler(t, "other"); h["state"] != "STATE_CORDONED" || h["managed"] != true {
		t.Errorf("after a restart it is %v", h)
	}
	n.berth(t, 0, "handler", "uncordon", "other")
	n.tells(t, "other", "- added - "+crun, "cordon ready cordoned uid 0 disk is being replaced", "uncordon cordoned ready uid 0")

	out, _ = n.berth(t, 0, "handler", "edit", "other", "--set", "snapshotter=native")
	has(t, out, "handler other is changed")
	out, _ = n.berth(t, 0, "whereis", pod.ID)
	has(t, out, "old: the definition of the handler has changed", "generation: "+now.Generation+"\n")
	_, stderr = n.berth(t, 2, "handler", "edit", "other", "--set", "snapshoter=native")
	has(t, stderr, "nothing was changed", "50-other.toml:5:1: runtimes.other.snapshoter: unknown key", `did you mean "snapshotter"?`)

	out, stderr = n.berth(t, 3, "handler", "edit", "other", "--set", "candidate.runtime_path=/no/such", "--set", "candidate.percent=10")
	has(t, out, "handler other is changed")
	has(t, stderr, "the candidate /no/such cannot run pods: ")
	out, _ = n.berth(t, 0, "handler", "edit", "other", "--unset", "candidate")
	has(t, out, "handler other is changed")
	_, stderr = n.berth(t, 1, "handler", "uncordon", "nowhere")
	has(t, stderr, `handler "nowhere" does not exist`)

	n.drain(t, pod)
	out, _ = n.berth(t, 0, "handler", "rm", "other")
	has(t, out, "handler other removed")
	if h := n.handler(t, "other"); h != nil {
		t.Errorf("it is still there: %v", h)
	}
	_, stderr = n.berth(t, 1, "handler", "rm", "runc")
	has(t, stderr, "edit "+n.ConfigFile+":", "berth reload --wait")
}

// tells looks for changes of a handler in that order: in "berth events", which has the
// daemon's starts between them, and in the log.
func (n *node) tells(t *testing.T, handler string, want ...string) {
	t.Helper()
	out, _ := n.berth(t, 0, "events")
	has(t, out, "TIME ", "HANDLER ", "start", "generation 1 ")
	out, _ = n.berth(t, 0, "events", "--handler", handler)
	text := strings.Join(strings.Fields(out), " ")
	for _, change := range want {
		_, after, found := strings.Cut(text, strings.TrimPrefix(change, "- "))
		if !found {
			t.Fatalf("%q is not there, or not after the others:\n%s", change, out)
		}
		text = after
	}
	log := n.Log()
	has(t, log, "what=cordon", "by=\"uid 0\"", "from=ready", "to=cordoned")
	if strings.Contains(log, `level=info msg="Management call answered"`) {
		t.Error("a change has a second line that names nothing")
	}
	_, stderr := n.berth(t, 1, "events", "--handler", "nothing")
	has(t, stderr, `handler "nothing" does not exist`)
}

// drain waits for a pod that goes while the command looks.
func (n *node) drain(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	cmd := n.command(ctx, "handler", "drain", "other")
	said := &watched{words: "1 pod left: testbed/", seen: make(chan struct{})}
	cmd.Stderr = said
	var out bytes.Buffer
	cmd.Stdout = &out
	testbed.Must(t, cmd.Start())
	select {
	case <-said.seen:
	case <-ctx.Done():
		t.Errorf("it does not say which pods are left")
	}
	pod.Remove(t)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("drain: %v\n%s", err, out.String())
	}
	has(t, out.String(), "handler other has no pods")
}

// watched is a writer that tells when words have come by.
type watched struct {
	words string
	once  sync.Once
	seen  chan struct{}
	mu    sync.Mutex
	text  strings.Builder
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if strings.Contains(w.text.String(), w.words) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(p), nil
}

// An interrupted drain says what is left, and leaves the handler as it is.
func TestAnInterruptedDrain(t *testing.T) {
	n := newNode(t)
	n.Client.RunSandbox(t, testbed.PodSpec{})
	_, stderr := n.berth(t, 3, "handler", "drain", "runc", "--timeout", "1s")
	has(t, stderr, "is still draining: 1 pod left", "berth handler uncordon runc")
	if h := n.handler(t, "runc"); h["state"] != "STATE_DRAINING" {
		t.Errorf("it is %v", h)
	}
	out, _ := n.berth(t, 0, "handler", "uncordon", "runc")
	has(t, out, "handler runc is ready")
}

// An interrupt while an editor is open is the editor's, and what was typed is not
// lost when it is refused.
func TestTheEditor(t *testing.T) {
	n := newNode(t)
	n.berth(t, 0, "handler", "add", "other", "--path", testbed.Part(t, testbed.Crun))
	interrupted, typed := filepath.Join(n.Dir, "interrupted"), filepath.Join(n.Dir, "typed")
	testbed.Must(t, unix.Mkfifo(interrupted, 0o600))
	editor := filepath.Join(n.Dir, "editor")
	// It says that it is there, waits for the interrupt, and saves nevertheless.
	write(t, editor, fmt.Sprintf("#!/bin/sh\ntrap 'cat %s >>\"$1\"; exit 0' INT\necho ready >%s\nwhile :; do sleep 0.05; done\n", typed, interrupted))
	if err := os.Chmod(editor, 0o755); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	edit := func(text string) (status int, said string) {
		t.Helper()
		write(t, typed, text)
		ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
		defer cancel()
		cmd := n.command(ctx, "handler", "edit", "other")
		cmd.Env = append(cmd.Env, "EDITOR="+editor, "VISUAL=", "TMPDIR="+n.Dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		testbed.Must(t, cmd.Start())
		if _, err := os.ReadFile(interrupted); err != nil { // until the editor is ready
			t.Fatal(err)
		}
		// As a terminal does: to all that were started from this line.
		testbed.Must(t, unix.Kill(-cmd.Process.Pid, unix.SIGINT))
		if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String()
	}
	status, said := edit("snapshotter = \"native\"\n")
	if has(t, said, "handler other is changed"); status != 0 {
		t.Errorf("exit status %d: %s", status, said)
	}
	if left, err := filepath.Glob(filepath.Join(n.Dir, "berth-other-*")); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v (%v)", left, err)
	}

	status, said = edit("max_pod = 3\n")
	if has(t, said, "unknown key", "your text is saved in "+n.Dir+"/berth-other-"); status != 2 {
		t.Errorf("exit status %d: %s", status, said)
	}
	kept, err := filepath.Glob(filepath.Join(n.Dir, "berth-other-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the text is in %v (%v)", kept, err)
	}
	text, err := os.ReadFile(kept[0])
	testbed.Must(t, err)
	has(t, string(text), "snapshotter = ", "max_pod = 3")
	write(t, kept[0], strings.Replace(string(text), "max_pod", "max_pods", 1))
	n.berth(t, 0, "handler", "edit", "other", "--from", kept[0])
	out, _ := n.berth(t, 0, "handler", "show", "other")
	has(t, out, "max_pods", "snapshotter")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

// Files that would be refused are told by file, line and key, and change nothing.
func TestReloadTellsEveryMistake(t *testing.T) {
	n := newNode(t)
	crun := testbed.Part(t, testbed.Crun)
	file := filepath.Join(n.Dir, "conf.d", "70-crun.toml")
	write := func(text string) { t.Helper(); write(t, file, text) }
	write("[runtimes.crun]\nruntime_pat = \"" + crun + "\"\n")
	_, stderr := n.berth(t, 2, "reload", "--wait")
	has(t, stderr, file+":2:1: runtimes.crun.runtime_pat: unknown key", `did you mean "runtime_path"?`, "stays in use")
	out, _ := n.berth(t, 3, "status")
	has(t, out, "degraded: the configuration was rejected at ", file+":2:1")
	_, stderr = n.berth(t, 2, "config", "diff")
	has(t, stderr, file+":2:1")

	write("[runtimes.crun]\nruntime_path = \"" + crun + "\"\n")
	out, _ = n.berth(t, 3, "config", "diff")
	has(t, out, `+ runtimes.crun.runtime_path = "`+crun+`" # `+file+":2")
	out, _ = n.berth(t, 0, "reload", "--wait")
	has(t, out, "handler crun: added", " applied (")
	n.berth(t, 0, "config", "diff")
	n.berth(t, 0, "status")
	out, _ = n.berth(t, 0, "config", "show", "--live")
	has(t, out, `runtimes.crun.runtime_path = "`+crun+`" # `+file+":2", `server.socket = "`+n.Socket+`" # `+n.ConfigFile)

	write("[runtimes.crun]\nruntime_path = \"/nowhere/crun\"\n")
	_, stderr = n.berth(t, 3, "reload", "--wait")
	has(t, stderr, "these handlers cannot run pods: crun")
	out, _ = n.berth(t, 3, "status")
	has(t, out, "degraded: handler crun is not ready: ", "/nowhere/crun does not exist")
	n.berth(t, 3, "handler", "probe", "crun")
}

// A user who is not root is refused by the kernel, and where a socket's mode was
// loosened by the daemon, which says so in its log.
func TestOtherUsersManageNothing(t *testing.T) {
	n := newNode(t)
	as := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
		defer cancel()
		cmd := n.command(ctx, "handler", "cordon", "runc")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err == nil || cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Fatalf("it ended with %v: %s", err, stderr.String())
		}
		return stderr.String()
	}
	n.reachable(t)
	has(t, as(), "permission denied for socket "+n.socket(), "as root")
	testbed.Must(t, os.Chmod(n.socket(), 0o666))
	has(t, as(), "user 65534 is not allowed to manage berth; call as root")
	has(t, n.Log(), "Rejected unauthorized management call", "uid=65534", "rpc=Cordon")
	if h := n.handler(t, "runc"); h["state"] != "STATE_READY" {
		t.Errorf("it is %v", h)
	}
}

// reachable makes a copy of berth that every user can run.
func (n *node) reachable(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.Bin, "berth"))
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(filepath.Join(n.Dir, "berth"), text, 0o755))
	n.Bin = n.Dir
}

// TestStatusAndFormsOfEveryCommand runs each command with a result as JSON and YAML,
// with a daemon on which all is well, and then with a handler that cannot run pods.
func TestStatusAndFormsOfEveryCommand(t *testing.T) {
	n := newNode(t)
	crun := testbed.Part(t, testbed.Crun)
	pod := n.Client.RunPod(t, testbed.PodSpec{Handler: "runc", Image: n.Image, Command: []string{"sleep", "600"}})
	for _, c := range []struct {
		line   string
		status int
	}{
		{"handler add other --path " + crun, 0},
		{"handler add other --path " + crun, 1},
		{"handler add third --path", 2},
		{"handler add third --path crun", 2},
		{"handlers", 0},
		{"handler show other", 0},
		{"handler show nobody", 1},
		{"capabilities", 0},
		{"capabilities other", 0},
		{"capabilities other --self-check", 0},
		{"capabilities nobody", 1},
		{"capabilities --self-check", 2},
		{"handler probe other", 0},
		{"handler edit other --set candidate.runtime_path=" + testbed.Part(t, testbed.Runc) + " --set candidate.percent=10", 0},
		{"handler promote other", 0},
		{"handler abort other --reason tested", 0},
		{"handler abort runc", 1},
		{"handler cordon other", 0},
		{"handler uncordon other", 0},
		{"handler drain other", 0},
		{"handler drain runc --timeout 1s", 3},
		{"handler uncordon runc", 0},
		{"handler rm other", 0},
		{"handler rm other", 1},
		{"pods", 0},
		{"pods --slow", 0},
		{"pods --slow --handler nothing", 1},
		{"whereis " + pod.ID, 0},
		{"whereis nothing", 1},
		{"whereis testbed/" + pod.Config.GetMetadata().GetName(), 0},
		{"whereis testbed/nobody", 1},
		{"checkpoint list", 0},
		{"checkpoint ls /nowhere", 1},
		{"image prune --dry-run", 0},
		{"pods -q", 2},
		{"checkpoint prune --keep 1", 0},
		{"checkpoint prune", 2},
		{"pod restore /nowhere", 2},
		{"pod restore /nowhere --replace", 1},
		{"status", 0},
		{"config diff", 0},
		{"config show --live", 0},
		{"check -c " + n.ConfigFile, 0},
		{"reload --wait", 0},
		{"reload", 0},
		{"handler add broken --path /nowhere/crun", 3},
		{"handler probe broken", 3},
		{"capabilities broken", 3},
		{"capabilities broken --self-check", 3},
		{"reload --wait", 3},
		{"status", 3},
		{"check -c " + n.ConfigFile, 3},
		{"handler rm broken", 0},
		{"version", 0},
	} {
		out, stderr := n.berth(t, c.status, append(strings.Fields(c.line), "-o", "json")...)
		if c.status == 1 && stderr == "" {
			t.Errorf("%s: it does not say why", c.line)
		}
		if out == "" {
			if c.status == 0 {
				t.Errorf("%s: it has no result", c.line)
			}
			continue
		}
		if !json.Valid([]byte(out)) {
			t.Errorf("%s: no JSON:\n%s", c.line, out)
		}
	}
}
