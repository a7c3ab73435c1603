// Package client calls the management API of a running berth, and turns errors into text with the
// action to take.
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

	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// maxAnswer bounds an answer, in bytes: a list of all pods may exceed gRPC's default of 4 MiB.
const maxAnswer = 80 << 20

// Client is a connection to one daemon. Any goroutine may use it.
type Client struct {
	adminv1.AdminClient
	connection *grpc.ClientConn
	socket     string
}

// New returns a client for the daemon on socket, a path with or without unix://. It connects with
// the first call.
func New(socket string) (*Client, error) {
	path, err := filepath.Abs(strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("the management socket %q: %w", socket, err)
	}
	connection, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, fmt.Errorf("the management socket %q: %w", socket, err)
	}
	return &Client{AdminClient: adminv1.NewAdminClient(connection), connection: connection, socket: path}, nil
}

// Close closes the connection.
func (c *Client) Close() { c.connection.Close() }

// Error is the error of a call.
type Error struct {
	Code codes.Code
	// Text is for people and includes the action to take.
	Text string
	// Problems are the problems of a rejected configuration.
	Problems []*adminv1.Problem
}

func (e *Error) Error() string { return e.Text }

// Invalid reports whether the caller must correct its input.
func (e *Error) Invalid() bool {
	return e.Code == codes.InvalidArgument || len(e.Problems) > 0
}

// Explain converts the error of a call into an *Error. Nil stays nil.
func (c *Client) Explain(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	e := &Error{Code: st.Code(), Text: printable.Error(err)}
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
			break // the daemon supports the call; its answer has the reason
		}
		e.Text = "the running daemon is older than this command and does not support it: systemctl restart berth (pods keep running)"
	case codes.DeadlineExceeded:
		e.Text = "berth did not respond in time; see journalctl -u berth"
	case codes.Canceled:
		e.Text = "interrupted"
	}
	return e
}

// Absent reports whether no process listens on the socket.
func (c *Client) Absent() bool {
	err := c.dial()
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// dialTimeout bounds the connection attempt after a call got no answer.
const dialTimeout = 2 * time.Second

// unreachable returns why the socket cannot be connected to, or "".
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

// dial connects to the socket once to check it.
func (c *Client) dial() error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return err
	}
	return connection.Close()
}

// Line formats a problem as "file:line:column: key: message (did you mean "x"?)".
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

// Capabilities returns the handler's capabilities; empty if the daemon does not report any.
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
