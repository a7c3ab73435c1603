// Package cli operates a real `berth serve` by the commands of the berth binary, while pods run on
// real runtimes.
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

// commandTimeout is much longer than any command here takes.
const commandTimeout = time.Minute

// node is a berth whose only handler is runc at first. Its methods run berth's commands.
type node struct{ *testbed.Bed }

func newNode(t *testing.T) *node {
	t.Helper()
	// Without watching, only commands change the handlers.
	n := &node{testbed.StartBed(t, "cli/busybox:1", testbed.Options{Config: "[handlers]\nwatch = false\n"})}
	n.Client.Pull(t, "", n.Image)
	return n
}

func (n *node) socket() string { return filepath.Join(filepath.Dir(n.Socket), "admin.sock") }

// command is a berth command for this node.
func (n *node) command(ctx context.Context, arguments ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(n.Bin, "berth"), arguments...)
	cmd.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+n.socket())
	return cmd
}

// berth runs a command that must exit with status want, and returns its output.
func (n *node) berth(t *testing.T, want int, arguments ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	return n.ran(t, want, n.command(ctx, arguments...))
}

// classes runs a command of kubectl-berth that must exit with status want, and returns its output.
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

// has fails unless the text contains all words.
func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the text lacks %q:\n%s", w, text)
		}
	}
}

// handler returns a handler from the JSON of "berth handlers", or nil if it does not exist.
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
		t.Errorf("with --no-headers the output is\n%s", out)
	}
	out, _ = n.berth(t, 0, "pods", "--slow", "-o", "wide")
	has(t, out, pod.ID, "sandbox ", "network ", "runtime ", "create main ", "rootfs ", "start main ")
	out, _ = n.berth(t, 0, "pods", "--slow", "--handler", "runc")
	if strings.Contains(out, pod.ID[:12]) {
		t.Errorf("--handler runc lists a pod of another handler: %s", out)
	}
	for _, id := range []string{pod.ID, pod.ID[:10], pod.Container.ID[:10], "berth://" + pod.Container.ID} {
		out, _ = n.berth(t, 0, "whereis", id)
		has(t, out, "sandbox:    "+pod.ID, "handler:    other", "generation: "+now.Generation+"\n", "binary:     "+crun, "runs:       "+n.Root+"/tools/runtime-", "sha256:     ", "current:")
	}
	_, stderr := n.berth(t, 1, "whereis", "nothing")
	has(t, stderr, `no sandbox or container has an ID with the prefix "nothing"; "berth pods" lists the pods`)

	out, _ = n.berth(t, 0, "handler", "cordon", "other", "--reason", "disk is being replaced")
	has(t, out, "handler other is cordoned: disk is being replaced")
	_, err := n.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.Client.SandboxConfig(""), RuntimeHandler: "other"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "disk is being replaced") {
		t.Errorf("a new pod of a cordoned handler: %v, want unavailable", err)
	}
	if text := pod.Container.Exec(t, "echo", "alive"); strings.TrimSpace(text) != "alive" {
		t.Errorf("the running pod of a cordoned handler prints %q", text)
	}
	n.Restart(t)
	if h := n.handler(t, "other"); h["state"] != "STATE_CORDONED" || h["managed"] != true {
		t.Errorf("after a restart the handler is %v, want cordoned", h)
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
		t.Errorf("the removed handler is still listed: %v", h)
	}
	_, stderr = n.berth(t, 1, "handler", "rm", "runc")
	has(t, stderr, "edit "+n.ConfigFile+":", "berth reload --wait")
}

// tells fails unless "berth events" lists these changes of a handler in this order, possibly with
// others between them, and the log has the cordoning.
func (n *node) tells(t *testing.T, handler string, want ...string) {
	t.Helper()
	out, _ := n.berth(t, 0, "events")
	has(t, out, "TIME ", "HANDLER ", "start", "generation 1 ")
	out, _ = n.berth(t, 0, "events", "--handler", handler)
	text := strings.Join(strings.Fields(out), " ")
	for _, change := range want {
		_, after, found := strings.Cut(text, strings.TrimPrefix(change, "- "))
		if !found {
			t.Fatalf("the events lack %q after the changes before it:\n%s", change, out)
		}
		text = after
	}
	log := n.Log()
	has(t, log, "what=cordon", "by=\"uid 0\"", "from=ready", "to=cordoned")
	if strings.Contains(log, `level=info msg="Management call answered"`) {
		t.Error("the log has a second line for a change, without its object")
	}
	_, stderr := n.berth(t, 1, "events", "--handler", "nothing")
	has(t, stderr, `handler "nothing" does not exist`)
}

// drain runs "handler drain other", and removes the pod once the command reports that it is left.
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
		t.Errorf("drain does not report which pods are left")
	}
	pod.Remove(t)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("drain: %v\n%s", err, out.String())
	}
	has(t, out.String(), "handler other has no pods")
}

// watched is a writer that closes seen once the words were written.
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

// A drain that reaches its timeout reports the pods that are left, and the handler stays draining.
func TestAnInterruptedDrain(t *testing.T) {
	n := newNode(t)
	n.Client.RunSandbox(t, testbed.PodSpec{})
	_, stderr := n.berth(t, 3, "handler", "drain", "runc", "--timeout", "1s")
	has(t, stderr, "is still draining: 1 pod left", "berth handler uncordon runc")
	if h := n.handler(t, "runc"); h["state"] != "STATE_DRAINING" {
		t.Errorf("the handler is %v, want draining", h)
	}
	out, _ := n.berth(t, 0, "handler", "uncordon", "runc")
	has(t, out, "handler runc is ready")
}

// An interrupt while the editor is open does not stop "handler edit". A refused text is saved.
func TestTheEditor(t *testing.T) {
	n := newNode(t)
	n.berth(t, 0, "handler", "add", "other", "--path", testbed.Part(t, testbed.Crun))
	interrupted, typed := filepath.Join(n.Dir, "interrupted"), filepath.Join(n.Dir, "typed")
	testbed.Must(t, unix.Mkfifo(interrupted, 0o600))
	editor := filepath.Join(n.Dir, "editor")
	// The editor reports that it is ready, waits for the interrupt, saves and exits.
	write(t, editor, fmt.Sprintf("#!/bin/sh\ntrap 'cat %s >>\"$1\"; exit 0' INT\necho ready >%s\nwhile :; do sleep 0.05; done\n", typed, interrupted))
	if err := os.Chmod(editor, 0o755); err != nil { //nolint:gosec // a program
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
		// A terminal, too, sends the signal to the whole process group.
		testbed.Must(t, unix.Kill(-cmd.Process.Pid, unix.SIGINT))
		if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String()
	}
	status, said := edit("snapshotter = \"native\"\n")
	if has(t, said, "handler other is changed"); status != 0 {
		t.Errorf("handler edit: exit status %d: %s", status, said)
	}
	if left, err := filepath.Glob(filepath.Join(n.Dir, "berth-other-*")); err != nil || len(left) > 0 {
		t.Errorf("the edit left %v (%v)", left, err)
	}

	status, said = edit("max_pod = 3\n")
	if has(t, said, "unknown key", "your text is saved in "+n.Dir+"/berth-other-"); status != 2 {
		t.Errorf("handler edit: exit status %d: %s", status, said)
	}
	kept, err := filepath.Glob(filepath.Join(n.Dir, "berth-other-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the refused text is in %v (%v), want one file", kept, err)
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

// A reload with mistakes reports file, line and key of each, and changes nothing.
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

// The kernel refuses a user who is not root. If the mode of the socket was loosened, the daemon
// refuses the user, and logs that.
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
			t.Fatalf("the command ended with %v, want exit status 1: %s", err, stderr.String())
		}
		return stderr.String()
	}
	n.reachable(t)
	has(t, as(), "permission denied for socket "+n.socket(), "as root")
	testbed.Must(t, os.Chmod(n.socket(), 0o666))
	has(t, as(), "user 65534 is not allowed to manage berth; call as root")
	has(t, n.Log(), "Rejected unauthorized management call", "uid=65534", "rpc=Cordon")
	if h := n.handler(t, "runc"); h["state"] != "STATE_READY" {
		t.Errorf("the handler is %v, want ready", h)
	}
}

// reachable copies berth to where every user can run it.
func (n *node) reachable(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.Bin, "berth"))
	testbed.Must(t, err)
	testbed.Must(t, os.WriteFile(filepath.Join(n.Dir, "berth"), text, 0o755))
	n.Bin = n.Dir
}

// TestStatusAndFormsOfEveryCommand checks exit status and JSON of each command that has a result:
// first with working handlers only, then with a handler that cannot run pods.
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
			t.Errorf("%s: the command failed without an error message", c.line)
		}
		if out == "" {
			if c.status == 0 {
				t.Errorf("%s: the command has no output", c.line)
			}
			continue
		}
		if !json.Valid([]byte(out)) {
			t.Errorf("%s: the output is not JSON:\n%s", c.line, out)
		}
	}
}
