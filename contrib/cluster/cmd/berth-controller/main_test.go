package main

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/commandline"
)

// What is wrong with the command line is said before anything is asked, by a status of its own.
func TestWrongCommandLines(t *testing.T) {
	for line, says := range map[string]string{
		"extra":                  `"berth-controller" takes no arguments, got "extra"; see "berth-controller --help"`,
		"--namspace x":           "unknown flag: --namspace",
		"--namespace=":           "--namespace is empty",
		"--namespace=UP":         `--namespace: "UP" is not a name of a namespace: `,
		"--address nonsense":     "--address=nonsense: address nonsense: missing port in address; write [HOST]:PORT",
		"--address :99999":       `--address=:99999: "99999" is not a port`,
		"--count-overhead=twice": "--count-overhead=twice must be by-status or once",
		"--kubeconfig /nowhere":  "--kubeconfig /nowhere: no such file or directory",
	} {
		t.Run(line, func(t *testing.T) {
			c := newCommand()
			c.SetArgs(strings.Fields(line))
			if err := c.ExecuteContext(t.Context()); err == nil || commandline.Status(err) != 2 || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v", err)
			}
		})
	}
}
