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

// TestSessionsAreLimited has one exec session where there may be one. A second is
// refused, whether it has its URL already or not; an attach is another matter.
func TestSessionsAreLimited(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{MaxSessions: 1}, p)
	first, late := execURL(t, s, streams{in: true, out: true}), execURL(t, s, streams{out: true})
	conn, _, _ := dialSPDY(t, first, "v4.channel.k8s.io", []string{"error", "stdin", "stdout"})
	soon(t, begun, "the session has begun")
	err := open(t, clients["SPDY"], late, remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "the most at a time") {
		t.Errorf("a session over the limit ended with %v", err)
	}
	ask := &runtimeapi.ExecRequest{ContainerId: "abc", Cmd: []string{"a"}, Stdout: true}
	if _, err := s.GetExec(ask); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "the most at a time") {
		t.Errorf("the call over the limit answers %v", err)
	}
	if _, err := s.GetAttach(&runtimeapi.AttachRequest{ContainerId: "abc", Stdout: true}); err != nil {
		t.Errorf("an attach is refused for an exec: %v", err)
	}
	_ = conn.Close()
	soon(t, ended, "the session has ended")
	// It is counted until it has answered its client.
	test.Eventually(t, "there is room for another session", func() bool {
		_, err := s.GetExec(ask)
		if err != nil && !errdefs.IsResourceExhausted(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}
