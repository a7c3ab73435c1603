// Package client talks to a running berth by its management API, and turns what
// goes wrong into text that says what to do.
package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// maxAnswer is how large an answer may be, in bytes: a list of all pods may be
// larger than gRPC's 4 MiB.
const maxAnswer = 80 << 20

// Client is a connection to one daemon. It may be used by any goroutine.
type Client struct {
	adminv1.AdminClient
	connection *grpc.ClientConn
	socket     string
}

// New makes a client of the daemon that serves the socket, a path with or without
// unix://. It connects with the first call.
func New(socket string) (*Client, error) {
	socket, err := filepath.Abs(strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("the management socket %q: %w", socket, err)
	}
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, fmt.Errorf("the management socket %q: %w", socket, err)
	}
	return &Client{AdminClient: adminv1.NewAdminClient(connection), connection: connection, socket: socket}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.connection.Close() }

// Error is what a call failed with.
type Error struct {
	Code codes.Code
	// Text is for people, and says what to do.
	Text string
	// Problems are those of a configuration that was refused.
	Problems []*adminv1.Problem
}

func (e *Error) Error() string { return e.Text }

// Invalid says whether the caller has to correct something that was given.
func (e *Error) Invalid() bool {
	return e.Code == codes.InvalidArgument || len(e.Problems) > 0
}

// Explain makes an *Error of what a call returned. Nil stays nil.
func (c *Client) Explain(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	e := &Error{Code: st.Code(), Text: st.Message()}
	for _, detail := range st.Details() {
		if p, ok := detail.(*adminv1.Problems); ok {
			e.Problems = p.GetProblems()
		}
	}
	switch st.Code() {
	case codes.Unavailable:
		if text := c.unreachable(); text != "" {
			e.Text = text
		}
	case codes.Unimplemented:
		if m := st.Message(); !strings.HasPrefix(m, "unknown service ") && !strings.HasPrefix(m, "unknown method ") {
			break // the daemon knows the call, and its answer has why not
		}
		e.Text = "the running daemon is older than this command and does not support it: systemctl restart berth (pods keep running)"
	case codes.DeadlineExceeded:
		e.Text = "berth did not respond in time; see journalctl -u berth"
	case codes.Canceled:
		e.Text = "interrupted"
	}
	return e
}

// Absent says whether nobody serves the socket: no daemon runs that has it.
func (c *Client) Absent() bool {
	err := c.dial()
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// dialTimeout bounds the look at a socket that did not answer.
const dialTimeout = 2 * time.Second

// unreachable says why nobody can be reached, or nothing if somebody can.
func (c *Client) unreachable() string {
	err := c.dial()
	switch {
	case err == nil:
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("berth is not running: socket %s does not exist; see systemctl status berth, or set --admin-socket to its server.admin_socket", c.socket)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("berth is not running: no process listens on %s; see systemctl status berth", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("permission denied for socket %s; run this as root", c.socket)
	}
	return fmt.Sprintf("cannot connect to berth at %s: %v; see systemctl status berth", c.socket, err)
}

// dial looks whether somebody serves the socket.
func (c *Client) dial() error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return err
	}
	return connection.Close()
}

// Line is a problem as "file:line:column: key: message (did you mean "x"?)".
func Line(p *adminv1.Problem) string {
	var b strings.Builder
	switch {
	case p.GetFile() != "" && p.GetLine() > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", p.GetFile(), p.GetLine(), p.GetColumn())
	case p.GetFile() != "":
		b.WriteString(p.GetFile() + ": ")
	}
	if p.GetKey() != "" {
		b.WriteString(p.GetKey() + ": ")
	}
	b.WriteString(p.GetMessage())
	if p.GetSuggestion() != "" {
		fmt.Fprintf(&b, " (did you mean %q?)", p.GetSuggestion())
	}
	return b.String()
}

// Capabilities are what the daemon says that a handler can do. Empty if it does not
// say.
func Capabilities(h *adminv1.Handler) capability.Table {
	m := h.GetCapabilities()
	t := capability.Table{
		Isolation: capability.Isolation(m.GetIsolation()), IsolationSource: capability.Source(m.GetIsolationSource()),
		SeccompActions: m.GetSeccompActions(), Conforms: m.GetConforms(),
	}
	for _, c := range m.GetCapabilities() {
		t.Set(capability.Name(c.GetName()), capability.Answer(c.GetAnswer()), capability.Source(c.GetSource()), c.GetNote())
	}
	return t
}
