package streaming

import (
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// TestSessionsAreLimited has one exec session, which is the limit. A second one is refused, whether
// it already has its URL or not. Attach sessions are counted separately.
func TestSessionsAreLimited(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{MaxSessions: 1}, p)
	first, late := execURL(t, s, streams{in: true, out: true}), execURL(t, s, streams{out: true})
	conn, _, _ := dialSPDY(t, first, "v4.channel.k8s.io", []string{"error", "stdin", "stdout"})
	soon(t, begun, "start of the session")
	err := open(t, clients["SPDY"], late, remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "the most at a time") {
		t.Errorf("a session over the limit returns %v, want a refusal", err)
	}
	ask := &runtimeapi.ExecRequest{ContainerId: "abc", Cmd: []string{"a"}, Stdout: true}
	if _, err := s.GetExec(ask); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "the most at a time") {
		t.Errorf("GetExec over the limit returns %v, want resource exhausted", err)
	}
	if _, err := s.GetAttach(&runtimeapi.AttachRequest{ContainerId: "abc", Stdout: true}); err != nil {
		t.Errorf("GetAttach is refused because of an exec: %v", err)
	}
	_ = conn.Close()
	soon(t, ended, "end of the session")
	// A session is counted until the runtime's call has returned.
	test.Eventually(t, "there is room for another session", func() bool {
		_, err := s.GetExec(ask)
		if err != nil && !errdefs.IsResourceExhausted(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}
