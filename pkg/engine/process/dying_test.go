package process

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestDying(t *testing.T) {
	if dying, err := Dying(os.Getpid()); dying || err != nil {
		t.Errorf("this process: %v, %v", dying, err)
	}
	child := exec.Command("sleep", "3600")
	test.Must(t, child.Start())
	pid := child.Process.Pid
	if dying, err := Dying(pid); dying || err != nil {
		t.Errorf("a child: %v, %v", dying, err)
	}
	test.Must(t, child.Process.Kill())
	// Dying is true from the moment that the signal is sent until the child is gone.
	test.Eventually(t, "the child is a zombie", func() bool {
		zombie := strings.Contains(test.File(t, fmt.Sprintf("/proc/%d/stat", pid)), ") Z ")
		if dying, err := Dying(pid); !dying || err != nil {
			t.Fatalf("a child that was killed: %v, %v", dying, err)
		}
		return zombie
	})
	test.Fails(t, child.Wait(), "the child was not killed")
	if dying, err := Dying(pid); !dying || err != nil {
		t.Errorf("a child that is gone: %v, %v", dying, err)
	}
}

func TestKillPending(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n": false,
		"Name:\tsh\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n": true,
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n": true,
		"Name:\tsh\nSigPnd:\t0000000000004000\nShdPnd:\t0000000000004000\n": false,
		"Name:\tSigPnd: 100\n": false,
		"":                     false,
	} {
		test.Equal(t, fmt.Sprintf("%q", status), killPending([]byte(status)), want)
	}
}
