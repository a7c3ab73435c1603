package processes

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

func TestPidfdOfAnother(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	test.Must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pidfd, own, err := Identify(cmd.Process.Pid)
	test.Must(t, err)
	defer unix.Close(pidfd)
	earlier := Process{PID: own.PID, StartTime: own.StartTime - 1}
	if IsAnother(pidfd, own) || IsAnother(pidfd, Process{PID: own.PID}) || !IsAnother(pidfd, earlier) {
		t.Error("IsAnother is true for the process itself, or false for another start time")
	}
	test.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if IsAnother(pidfd, own) {
		t.Error("IsAnother is true for the process itself after its exit")
	}
}

func TestExitStatusOfWait(t *testing.T) {
	for raw, want := range map[int32]uint32{0: 0, 3 << 8: 3, 255 << 8: 255, 9: 137, 15: 143, 11 | 0x80: 139} {
		test.Equal(t, fmt.Sprintf("status of %#x", raw), decodeStatus(raw), want)
	}
	for info, want := range map[waitInfo]uint32{
		{code: codeExited, status: 3}:  3,
		{code: codeKilled, status: 9}:  137,
		{code: codeDumped, status: 11}: 139,
	} {
		test.Equal(t, fmt.Sprintf("status of %+v", info), info.exitStatus(), want)
	}
}

func TestOpenPidfdOfAReusedPid(t *testing.T) {
	stat := test.Value(procfs.StatOf(os.Getpid()))(t)
	fd := test.Value(Open(Process{PID: os.Getpid(), StartTime: stat.Started}))(t)
	unix.Close(fd)
	test.ErrorIs(t, test.Err(Open(Process{PID: os.Getpid(), StartTime: stat.Started + 1})), unix.ESRCH, "open with another start time")
}
