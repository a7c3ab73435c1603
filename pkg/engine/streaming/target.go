package streaming

import (
	"io"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// asked are the streams that a request names. Over WebSocket cri-streaming passes
// on all three, of which those that were not asked for are at their end, and an
// input at its end is not the same as none. So what was asked for goes with the
// container's id, which cri-streaming only passes on.
type asked struct{ in, out, err bool }

const (
	targetSeparator = "/"
	targetIn        = "i"
	targetOut       = "o"
	targetErr       = "e"
)

// target is what cri-streaming gets for a container's id.
func (a asked) target(id string) string {
	id += targetSeparator
	for _, s := range []struct {
		asked  bool
		letter string
	}{{a.in, targetIn}, {a.out, targetOut}, {a.err, targetErr}} {
		if s.asked {
			id += s.letter
		}
	}
	return id
}

// parseTarget undoes target.
func parseTarget(target string) (id string, a asked) {
	id, letters, _ := strings.Cut(target, targetSeparator)
	return id, asked{
		in:  strings.Contains(letters, targetIn),
		out: strings.Contains(letters, targetOut),
		err: strings.Contains(letters, targetErr),
	}
}

// of leaves out the streams that were not asked for.
func (a asked) of(in io.Reader, out, errOut io.WriteCloser) (io.Reader, io.WriteCloser, io.WriteCloser) {
	if !a.in {
		in = nil
	}
	if !a.out {
		out = nil
	}
	if !a.err {
		errOut = nil
	}
	return in, out, errOut
}

// GetExec returns the URL of a session with a command, if there may be one more.
func (s *Server) GetExec(r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if err := s.sessions.room(execKind); err != nil {
		return nil, err
	}
	return s.Server.GetExec(&runtimeapi.ExecRequest{
		ContainerId: asked{r.GetStdin(), r.GetStdout(), r.GetStderr()}.target(r.GetContainerId()),
		Cmd:         r.GetCmd(), Tty: r.GetTty(), Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(),
	})
}

// GetAttach returns the URL of a session with a container's first process, if there
// may be one more.
func (s *Server) GetAttach(r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if err := s.sessions.room(attachKind); err != nil {
		return nil, err
	}
	return s.Server.GetAttach(&runtimeapi.AttachRequest{
		ContainerId: asked{r.GetStdin(), r.GetStdout(), r.GetStderr()}.target(r.GetContainerId()),
		Tty:         r.GetTty(), Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(),
	})
}
