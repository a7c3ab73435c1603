package installer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// TestPrograms runs programs of this machine, and checks output, exit status and errors. A program
// that hangs is killed after a time limit.
func TestPrograms(t *testing.T) {
	c := Chroot{Root: "/"}
	for name, p := range map[string]struct {
		command []string
		out     string
		status  int
		says    string
	}{
		"prints":  {[]string{"echo", "a"}, "a\n", -1, ""},
		"fails":   {[]string{"sh", "-c", "echo out; echo why >&2; exit 3"}, "out\n", 3, "sh -c echo out; echo why >&2; exit 3: exit status 3: why"},
		"hangs":   {[]string{"sleep", "600"}, "", -1, "sleep 600: it did not exit within 100ms"},
		"missing": {[]string{"no-such-program"}, "", -1, "no-such-program is not on the node; searched /usr/local/sbin"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if name == "hangs" {
				limit = 100 * time.Millisecond
			}
			out, err := c.run(t.Context(), limit, p.command[0], p.command[1:]...)
			if string(out) != p.out || (err == nil) != (p.says == "") || err != nil && !strings.Contains(err.Error(), p.says) || exitStatus(err) != p.status {
				t.Errorf("got %q, %v, status %d, want %q, %q, %d", out, err, exitStatus(err), p.out, p.says, p.status)
			}
		})
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	test.ErrorIs(t, test.Err(c.Run(ctx, "sleep", "600")), context.Canceled, "the error")
}
