package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// scripted is a runtime that is a script in front of runc: it notes each call,
// and does to it what the test says.
type scripted struct {
	// Path is the script, to be named in a configuration.
	Path string
	dir  string
}

const scriptedBody = `#!/bin/sh
dir=%q
verb=
skip=
for word; do
	if [ -n "$skip" ]; then skip=; continue; fi
	case $word in
	--root|--log|--log-format) skip=1 ;;
	-*) ;;
	*) verb=$word; break ;;
	esac
done
case $verb in
''|features) ;; # every runtime of a configuration is probed
*) echo "$verb" >>"$dir/calls" ;;
esac
if [ -e "$dir/on-$verb" ]; then . "$dir/on-$verb"; fi
exec %q "$@"
`

func newScripted(t *testing.T) *scripted {
	t.Helper()
	dir := t.TempDir()
	s := &scripted{Path: filepath.Join(dir, "runtime"), dir: dir}
	body := fmt.Sprintf(scriptedBody, dir, testbed.Part(t, testbed.Runc))
	if err := os.WriteFile(s.Path, []byte(body), 0o755); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	return s
}

// on has the script run a few lines of shell in place of a subcommand; none
// lets it pass again.
func (s *scripted) on(t *testing.T, verb, lines string) {
	t.Helper()
	path := filepath.Join(s.dir, "on-"+verb)
	err := os.Remove(path)
	if lines != "" {
		err = os.WriteFile(path, []byte(lines+"\n"), 0o600)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// calls returns the subcommands since the last time it was asked.
func (s *scripted) calls(t *testing.T) string {
	t.Helper()
	path := filepath.Join(s.dir, "calls")
	body, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	_ = os.Remove(path)
	return strings.Join(strings.Fields(string(body)), " ")
}

// TestPin changes the configuration under a pod: the default, and then the
// handler itself. The pod keeps the runtime that it was created with.
func TestPin(t *testing.T) {
	first, second := newScripted(t), newScripted(t)
	handlers := func(byDefault string, handlers ...string) string {
		text := fmt.Sprintf("default_runtime = %q\n", byDefault)
		return text + strings.Join(handlers, "")
	}
	one := fmt.Sprintf("[runtimes.one]\nruntime_path = %q\n", first.Path)
	two := fmt.Sprintf("[runtimes.two]\nruntime_path = %q\n", second.Path)
	b := newBed(t, testbed.Options{Config: handlers("one", one, two)})
	atRest := b.Rest(t)
	old := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	b.ranUnder(t, old.Container, "one", first)

	b.configure(t, handlers("two", one, two))
	first.calls(t)
	fresh := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	b.ranUnder(t, fresh.Container, "two", second)
	fresh.Remove(t)
	if calls := first.calls(t); strings.Contains(calls, "run") {
		t.Errorf("a new pod of the default made the old default's runtime do %q", calls)
	}

	// What handler one means has changed, and so has the default.
	moved := newScripted(t)
	b.configure(t, handlers("two", fmt.Sprintf("[runtimes.one]\nruntime_path = %q\n", moved.Path), two))
	b.livesOn(t, old, first, second, moved)
	other := b.Client.RunPod(t, testbed.PodSpec{Handler: "one", Image: b.Image, Command: []string{"sleep", "3600"}})
	b.ranUnder(t, other.Container, "one", moved)
	other.Remove(t)

	// The handler is gone, and is kept for its pod alone.
	b.configure(t, handlers("two", two))
	b.livesOn(t, old, first, second)
	_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{
		Config: b.Client.SandboxConfig(""), RuntimeHandler: "one",
	})
	testbed.Refused(t, err, codes.Unavailable, `"one"`, "no longer configured")
	second.calls(t)
	first.calls(t)
	old.Remove(t)
	if calls := first.calls(t); !strings.Contains(calls, "delete") {
		t.Errorf("removing the pod made its runtime do %q", calls)
	}
	testbed.Same(t, second.calls(t), "", "removing the pod made another's runtime do")
	b.NothingLeft(t, atRest)
}

// configure replaces the drop-in and restarts berth.
func (b *bed) configure(t *testing.T, text string) {
	t.Helper()
	testbed.Must(t, os.WriteFile(filepath.Join(b.Dir, "conf.d", "50-test.toml"), []byte(text), 0o600))
	b.Restart(t)
}

// ranUnder fails unless a container was started by this runtime, has its state
// in the directory of this handler, and says so.
func (b *bed) ranUnder(t *testing.T, c *testbed.Container, handler string, runtime *scripted) {
	t.Helper()
	is := b.info(t, c.ID)
	if is.Handler != handler || is.RuntimePath != runtime.Path {
		t.Errorf("container %s is under handler %q, runtime %s; want %q, %s", c.ID, is.Handler, is.RuntimePath, handler, runtime.Path)
	}
	if calls := runtime.calls(t); !strings.Contains(calls, "run") {
		t.Errorf("the runtime was made to do %q", calls)
	}
	if _, err := os.Stat(filepath.Join(b.State, "runtimes", handler, c.ID, "state.json")); err != nil {
		t.Errorf("the runtime's state: %v", err)
	}
}

// livesOn does with an old pod all that a kubelet does, and looks who did it.
func (b *bed) livesOn(t *testing.T, old *testbed.Pod, runtime *scripted, others ...*scripted) {
	t.Helper()
	for _, other := range others {
		other.calls(t)
	}
	runtime.calls(t)
	testbed.Same(t, old.Container.Exec(t, "echo", "alive"), "alive\n", "exec said")
	added := old.RunContainer(t, fmt.Sprintf("added-%d", time.Now().UnixNano()), testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	added.WaitState(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
	testbed.Same(t, b.info(t, added.ID).RuntimePath, runtime.Path, "a new container of the old pod is under")
	added.Stop(t, 0)
	added.Remove(t)
	calls := runtime.calls(t)
	for _, want := range []string{"exec", "run", "delete"} {
		if !strings.Contains(" "+calls+" ", " "+want+" ") {
			t.Errorf("the old pod's runtime did %q, without %s", calls, want)
		}
	}
	for _, other := range others {
		testbed.Same(t, other.calls(t), "", "the old pod made %s do", other.Path)
	}
}
