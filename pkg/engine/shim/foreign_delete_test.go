package shim

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestEndpointEnded(t *testing.T) {
	own := test.Value(startTime(os.Getpid()))(t)
	child := exec.Command("true")
	test.Must(t, child.Start())
	since := test.Value(startTime(child.Process.Pid))(t)
	// The child has exited, but is a zombie until it is waited for.
	test.Must(t, unix.Waitid(unix.P_PID, child.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	dead := Endpoint{PID: child.Process.Pid, StartTime: since}
	for name, c := range map[string]struct {
		ep   Endpoint
		want bool
	}{
		"runs":                                 {Endpoint{PID: os.Getpid(), StartTime: own}, false},
		"is not known":                         {Endpoint{}, false},
		"is another process with the same PID": {Endpoint{PID: os.Getpid(), StartTime: own - 1}, true},
		"was not waited for":                   {dead, true},
	} {
		test.Equal(t, fmt.Sprintf("a shim that %s", name), c.ep.ended(), c.want)
	}
	test.Must(t, child.Wait())
	if !dead.ended() {
		t.Error("a shim that is gone counts as running")
	}
}
