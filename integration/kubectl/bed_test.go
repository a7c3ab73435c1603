// Package kubectl runs "kubectl berth" by a real kubectl against a real API server. Nodes are only
// objects there; these tests need no kubelet.
package kubectl

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	nodev1 "k8s.io/api/node/v1"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
)

// bed is an API server with two kubeconfigs for it.
type bed struct {
	*kubelet.Server
	admin, guest string // paths of kubeconfigs
}

// newBed starts a server. Without the admission plugins for service accounts and taints,
// pods and nodes stay as a test creates them.
func newBed(t *testing.T) *bed {
	t.Helper()
	s := kubelet.StartServer(t, "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,TaintNodesByCondition")
	return &bed{s, s.Kubeconfig(t, kubelet.Admin, ""), s.Kubeconfig(t, kubelet.Guest, "")}
}

// result is the exit status and the output of a command.
type result struct {
	code           int
	stdout, stderr string
}

// command is "kubectl berth" with arguments. kubectl finds the plugin in the PATH.
func command(t *testing.T, stdin string, environment []string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Kubectl), append([]string{"berth"}, args...)...)
	c.Env = append(os.Environ(), "PATH="+testbed.Built(t)+":"+os.Getenv("PATH"), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir(), "KUBECONFIG=")
	c.Env = append(c.Env, environment...)
	c.Stdin = strings.NewReader(stdin)
	return c
}

func run(t *testing.T, stdin string, environment []string, args ...string) result {
	t.Helper()
	var out, mistakes bytes.Buffer
	c := command(t, stdin, environment, args...)
	c.Stdout, c.Stderr = &out, &mistakes
	if err := c.Run(); err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), mistakes.String()}
}

// berth runs "kubectl berth" with a kubeconfig. The command must exit with that code.
func berth(t *testing.T, code int, kubeconfig, stdin string, args ...string) result {
	t.Helper()
	r := run(t, stdin, []string{"KUBECONFIG=" + kubeconfig}, args...)
	if r.code != code {
		t.Fatalf("kubectl berth %s: exit status %d, want %d\n%s\n%s", strings.Join(args, " "), r.code, code, r.stdout, r.stderr)
	}
	return r
}

// kubectl runs a command of kubectl itself as the administrator.
func (b *bed) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Kubectl), args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+b.admin, "HOME="+t.TempDir())
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

const (
	classesPath = "/apis/node.k8s.io/v1/runtimeclasses"
	nodesPath   = "/api/v1/nodes"
)

// create creates the object v at a path of the API.
func (b *bed) create(t *testing.T, path string, v any) {
	t.Helper()
	body, err := json.Marshal(v)
	testbed.Must(t, err)
	if status, answer := b.Send(t, http.MethodPost, path, body); status != http.StatusCreated {
		t.Fatalf("create at %s: %d: %s", path, status, answer)
	}
}

// class returns a class of the server, nil if it does not exist.
func (b *bed) class(t *testing.T, name string) *nodev1.RuntimeClass {
	t.Helper()
	status, answer := b.Send(t, http.MethodGet, classesPath+"/"+name, nil)
	if status == http.StatusNotFound {
		return nil
	}
	c := &nodev1.RuntimeClass{}
	if err := json.Unmarshal(answer, c); err != nil || status != http.StatusOK {
		t.Fatalf("read a class: %d, %v: %s", status, err, answer)
	}
	return c
}

// empty removes all objects at these paths when the test ends.
func (b *bed) empty(t *testing.T, paths ...string) {
	t.Helper()
	t.Cleanup(func() {
		for _, path := range paths {
			if status, answer := b.Send(t, http.MethodDelete, path, nil); status != http.StatusOK {
				t.Errorf("delete all at %s: %d: %s", path, status, answer)
			}
		}
	})
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// has fails unless a text contains all parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in:\n%s", part, text)
		}
	}
}
