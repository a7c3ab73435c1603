package coredump_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/coredump"
	"github.com/berth-cri/berth/pkg/coredump/coredumptest"
)

// what names the environment variable by which the test binary forbids its core dumps. With
// the value "exec", the binary then runs a program that crashes, and prints how it ended.
const what = "COREDUMP_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(what) == "" {
		os.Exit(m.Run())
	}
	if err := coredump.Forbid(); err != nil {
		panic(err)
	}
	if os.Getenv(what) == "exec" {
		child := exec.Command("sh", "-c", "ulimit -c unlimited; kill -QUIT $$")
		err := child.Run()
		_, _ = os.Stdout.WriteString(err.Error())
		return
	}
	_, _ = os.Stdout.WriteString("forbidden")
	time.Sleep(time.Hour) // the test kills this process
}

func process(t *testing.T, how string) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), what+"="+how, coredumptest.Environment)
	c.Dir = t.TempDir()
	return c
}

func TestForbid(t *testing.T) {
	coredumptest.Need(t)
	c := process(t, "wait")
	out := test.Value(c.StdoutPipe())(t)
	test.Must(t, c.Start())
	test.Must(t, test.Err(out.Read(make([]byte, 1))))
	if coredumptest.Crashed(t, c) {
		t.Error("the process left a core dump")
	}
}

// TestProgramsLeaveCores: programs that the process starts still leave core dumps, since they may
// be those of pods.
func TestProgramsLeaveCores(t *testing.T) {
	coredumptest.Need(t)
	out, err := process(t, "exec").Output()
	if err != nil || !strings.Contains(string(out), "core dumped") {
		t.Errorf("the started program: %q, %v", out, err)
	}
}
