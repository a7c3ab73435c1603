package admin_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// asCaller is the environment variable with the socket that the test binary calls as a client.
const asCaller = "BERTH_TEST_ADMIN_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(asCaller); socket != "" {
		os.Exit(callOnce(socket))
	}
	m.Run()
}

func callOnce(socket string) int {
	c, err := client.New(socket)
	if err == nil {
		_, err = c.GetStatus(context.Background(), &adminv1.GetStatusRequest{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// The daemon itself refuses another user, even if the socket's mode allows the
// connection.
func TestOtherUsersAreRefused(t *testing.T) {
	b := newBed(t)
	test.Must(t, os.Chmod(b.socket, 0o777))
	// The other user must be able to run this binary.
	self := test.Value(os.ReadFile("/proc/self/exe"))(t)
	program := strings.TrimSuffix(b.socket, "admin.sock") + "caller"
	test.Must(t, os.WriteFile(program, self, 0o755))
	for uid, want := range map[uint32]string{65534: "user 65534 is not allowed to manage berth; call as root", 0: ""} {
		cmd := exec.Command(program)
		cmd.Dir, cmd.Env = "/", []string{asCaller + "=" + b.socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if want == "" && err != nil || want != "" && !strings.Contains(string(out), want) {
			t.Errorf("user %d: %v: %s", uid, err, out)
		}
	}
}
