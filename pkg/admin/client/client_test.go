package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// If the daemon is not running, the error reports that and what to do.
func TestNobodyAnswers(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	left := filepath.Join(dir, "left.sock")
	l := test.Value(net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	for socket, want := range map[string]string{
		filepath.Join(dir, "none"): "berth is not running: socket " + dir + "/none does not exist; see systemctl status berth, or set",
		left:                       "berth is not running: no process listens on " + left + "; see systemctl status berth",
		"left.sock":                "berth is not running: no process listens on " + left + "; see systemctl status berth",
		"unix://" + left:           "berth is not running: no process listens on " + left + "; see systemctl status berth",
	} {
		c := test.Value(New(socket))(t)
		_, err := c.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
		var e *Error
		if err := c.Explain(err); !errors.As(err, &e) || !strings.HasPrefix(e.Text, want) || e.Invalid() {
			t.Errorf("got %v", err)
		}
		c.Close()
	}
}

// A relative socket needs the working directory.
func TestNoWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	test.Must(t, os.Remove(dir))
	_, err := New("unix://berth.sock")
	test.Says(t, err, `the management socket "unix://berth.sock": `)
}

// TestUnimplemented: the error mentions an older daemon only if a service or method is unknown.
func TestUnimplemented(t *testing.T) {
	c := test.Value(New("/nowhere"))(t)
	defer c.Close()
	for text, want := range map[string]string{
		"unknown service berth.admin.v1.Admin":                "the running daemon is older",
		"unknown method X for service berth.admin.v1.Admin":   "the running daemon is older",
		`handler "crun": crun does not report support for it`: `handler "crun": crun does not report`,
	} {
		var e *Error
		if err := c.Explain(status.Error(codes.Unimplemented, text)); !errors.As(err, &e) || !strings.HasPrefix(e.Text, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestExplainNothing(t *testing.T) {
	c := test.Value(New("/nowhere"))(t)
	defer c.Close()
	if err := c.Explain(nil); err != nil {
		t.Errorf("nil is explained as %v", err)
	}
}

// An error of the command itself is explained without its class, which is for programs.
func TestExplainLocalErrors(t *testing.T) {
	c := test.Value(New("/nowhere"))(t)
	defer c.Close()
	test.Equal(t, "text", c.Explain(fmt.Errorf("open /x: %w", errdefs.ErrInvalidArgument)).Error(), "open /x")
}

func TestLine(t *testing.T) {
	for want, p := range map[string]*adminv1.Problem{
		`/a.toml:1:2: k: wrong (did you mean "x"?)`: {File: "/a.toml", Line: 1, Column: 2, Key: "k", Message: "wrong", Suggestion: "x"},
		"command line: k: wrong":                    {File: "command line", Key: "k", Message: "wrong"},
		"wrong":                                     {Message: "wrong"},
	} {
		test.Equal(t, "Line", Line(p), want)
	}
}
