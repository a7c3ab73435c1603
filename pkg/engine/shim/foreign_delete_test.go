package shim

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEndpointEnded(t *testing.T) {
	own := value(startTime(os.Getpid()))(t)
	child := exec.Command("true")
	must(t, child.Start())
	since := value(startTime(child.Process.Pid))(t)
	// It has ended, and is there until it is waited for.
	must(t, unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	dead := Endpoint{PID: child.Process.Pid, StartTime: since}
	for name, c := range map[string]struct {
		ep   Endpoint
		want bool
	}{
		"runs":                    {Endpoint{PID: os.Getpid(), StartTime: own}, false},
		"is not known":            {Endpoint{}, false},
		"is another with its pid": {Endpoint{PID: os.Getpid(), StartTime: own - 1}, true},
		"was not waited for":      {dead, true},
	} {
		if got := c.ep.ended(); got != c.want {
			t.Errorf("a shim that %s: %v", name, got)
		}
	}
	must(t, child.Wait())
	if !dead.ended() {
		t.Error("a shim that is gone has not ended")
	}
}
