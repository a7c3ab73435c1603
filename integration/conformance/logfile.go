package conformance

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// logged is the content of a CRI log, with its partial lines joined.
type logged struct {
	stdout, stderr string
	entries        []testbed.LogLine
}

// lines counts the lines of stdout, not the entries: a line that a rotation splits has two entries.
func (l logged) lines() int { return strings.Count(l.stdout, "\n") }

// logged waits for the log of an exited container to be complete, because the last bytes may be
// written after the exit is visible. The log is complete if it did not grow for 150 ms, or for a
// second if it is empty. Logs that do not parse fail the check.
func (c *container) logged(t *testing.T) logged {
	t.Helper()
	path := c.logFile()
	var last int64 = -1
	began := time.Now()
	testbed.Poll(t, time.Minute, 20*time.Millisecond, func() error {
		fi, err := os.Stat(path)
		must(t, err, "log file")
		if size := fi.Size(); size != last || c.status(t).GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			last, began = size, time.Now()
		}
		if quiet := time.Since(began); quiet > time.Second || last > 0 && quiet > 150*time.Millisecond {
			return nil
		}
		return errors.New("the log still grows")
	})
	if b := readFile(path); b != "" && b[len(b)-1] != '\n' {
		t.Errorf("the log of an ended container ends without a newline: %q", clip([]byte(b[strings.LastIndexByte(b, '\n')+1:])))
	}
	return readLog(t, path)
}

func (c *container) logFile() string {
	return filepath.Join(c.pod.Config.LogDirectory, c.Config.LogPath)
}

// readLog reads the files of one log, the oldest first.
func readLog(t *testing.T, paths ...string) logged {
	t.Helper()
	var l logged
	var stdout, stderr strings.Builder
	for _, path := range paths {
		b, err := os.ReadFile(path)
		must(t, err, "read log")
		// What comes after the last newline is still being written.
		entries, err := testbed.ParseLog(b[:bytes.LastIndexByte(b, '\n')+1])
		must(t, err, path)
		for _, e := range entries {
			of := &stderr
			if e.Stream == "stdout" {
				of = &stdout
			}
			of.WriteString(e.Text)
			if !e.Partial {
				of.WriteByte('\n')
			}
		}
		l.entries = append(l.entries, entries...)
	}
	l.stdout, l.stderr = stdout.String(), stderr.String()
	return l
}

func clip(b []byte) []byte {
	if len(b) > 120 {
		return b[:120]
	}
	return b
}
