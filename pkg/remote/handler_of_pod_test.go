package remote

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

// A daemon may omit the handler of a pod in responses, as CRI-O does. The pod still belongs to the
// handler that it was created under.
func TestHandlerThatADaemonOmits(t *testing.T) {
	n := naming{names: newNames(nil), known: &lastknown.Pods{}}
	n.names.set([]lastknown.Handler{{Name: "crio", Remote: ""}, {Name: "crun", Remote: "crun"}, {Name: "kata", Remote: "kata-qemu"}})
	for name, tc := range map[string]struct{ handler, theirs, want string }{
		"the daemon's default":             {"crio", "", ""},
		"a handler of the same name":       {"crun", "crun", "crun"},
		"a handler of another name":        {"kata", "kata-qemu", "kata"},
		"a handler that is not configured": {"gone", "crun", "gone"},
	} {
		ctx := handler.WithDefinition(t.Context(), &handler.Definition{Name: tc.handler})
		kept := n.assignedFor(ctx, tc.theirs)
		test.Equal(t, fmt.Sprintf("%s: the recorded handler", name), kept, tc.want)
		if kept == "" {
			continue
		}
		n.known.Assign(name, kept)
		for _, said := range []string{tc.theirs, ""} {
			test.Equal(t, fmt.Sprintf("%s: the handler if the daemon reports %q", name, said), n.sandbox(name, said), tc.handler)
		}
	}
}

// A daemon may list a pod without a handler. Then berth shows the handler whose remote_handler is
// the daemon's default. If there is none, berth shows its first handler by name.
func TestListsNameTheHandlerThatADaemonLeavesOut(t *testing.T) {
	for _, handlers := range [][]lastknown.Handler{{{Name: "legacy", Remote: "crun"}}, {{Name: "crun", Remote: "crun"}}, {{Name: "crio", Remote: ""}}} {
		n := naming{names: newNames(nil), known: &lastknown.Pods{}}
		n.names.set(handlers)
		theirs := test.Value(proto.Marshal(&runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{Id: "one"}}}))(t)
		var ours runtimeapi.ListPodSandboxResponse
		test.Must(t, proto.Unmarshal(n.list(theirs), &ours))
		test.Equal(t, fmt.Sprintf("with %v, the sandbox's handler is", handlers), ours.GetItems()[0].GetRuntimeHandler(), handlers[0].Name)
	}
}

// TestHandlerIsStoredAtOnce reads the state file right after a pod's creation. The file must
// already have the pod's handler, although the rest of the file is written later.
func TestHandlerIsStoredAtOnce(t *testing.T) {
	b := test.Value(newBackend(backendOptions{
		Endpoint: filepath.Join(t.TempDir(), "cri.sock"), Dir: t.TempDir(), Instance: "me", ListTimeout: time.Second, Changed: func() {},
		Handlers: []lastknown.Handler{{Name: "legacy", Remote: "runc"}, {Name: "other", Remote: "runc"}},
	}))(t)
	b.record(t.Context(), lastknown.Change{Kind: lastknown.CreatedSandbox, Handler: "other", Sandbox: &runtimeapi.PodSandbox{Id: "p"}})
	if got := opened(t, b.state.Path).Known.HandlerOf["p"]; got != "other" {
		t.Errorf("the handler of the pod is %q in the file", got)
	}
}
