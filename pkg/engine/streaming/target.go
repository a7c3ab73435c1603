package streaming

import (
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// target is a container and the streams that a request names. It is encoded as the container's id,
// which cri-streaming only passes on. Over WebSocket cri-streaming passes all three streams: those
// that were not requested are at EOF, and an input at EOF differs from no input.
type target struct {
	id           string
	in, out, err bool
}

func (t target) String() string { return fmt.Sprintf("%s %t %t %t", t.id, t.in, t.out, t.err) }

// parseTarget parses the text of String.
func parseTarget(text string) (t target, err error) {
	_, err = fmt.Sscan(text, &t.id, &t.in, &t.out, &t.err)
	return t, err
}

// of drops the streams that were not requested.
func (t target) of(in io.Reader, out, errOut io.WriteCloser) (io.Reader, io.WriteCloser, io.WriteCloser) {
	if !t.in {
		in = nil
	}
	if !t.out {
		out = nil
	}
	if !t.err {
		errOut = nil
	}
	return in, out, errOut
}

// GetExec returns the URL of a session with a command, within MaxSessions.
func (s *Server) GetExec(r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := s.sessions.room(execKind); err != nil {
		return nil, err
	}
	r = proto.CloneOf(r)
	r.ContainerId = target{r.GetContainerId(), r.GetStdin(), r.GetStdout(), r.GetStderr()}.String()
	return s.Server.GetExec(r)
}

// GetAttach returns the URL of a session with a container's first process, within MaxSessions.
func (s *Server) GetAttach(r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := s.sessions.room(attachKind); err != nil {
		return nil, err
	}
	r = proto.CloneOf(r)
	r.ContainerId = target{r.GetContainerId(), r.GetStdin(), r.GetStdout(), r.GetStderr()}.String()
	return s.Server.GetAttach(r)
}
