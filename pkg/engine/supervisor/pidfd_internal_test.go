package supervisor

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestPidfdOfAnother(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	test.Must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pidfd, own, err := identify(cmd.Process.Pid)
	test.Must(t, err)
	defer unix.Close(pidfd)
	earlier := Process{PID: own.PID, StartTime: own.StartTime - 1}
	if isAnother(pidfd, own) || isAnother(pidfd, Process{PID: own.PID}) || !isAnother(pidfd, earlier) {
		t.Error("it is taken for another, or another for it")
	}
	test.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if isAnother(pidfd, own) {
		t.Error("one that has ended is taken for another")
	}
}
