package session

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestSaysEnded(t *testing.T) {
	for text, want := range map[string]bool{
		"run command: cannot exec in a stopped container":                                   true,
		"exec failed: container not running":                                                true,
		"the container `abc` is not running":                                                true,
		`cannot execute in container "abc" in state stopped`:                                true,
		"failed to create exec: container state invalid: stopped":                           true,
		`exec: "stopped": executable file not found in $PATH`:                               false,
		"OCI runtime exec failed: exec failed: permission denied":                           false,
		"the runtime's exec exited with status 1: setns process: No such file or directory": false,
	} {
		test.Equal(t, fmt.Sprintf("%q", text), meansExited(text), want)
	}
}
