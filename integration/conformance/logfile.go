package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// logged is the content of a CRI log, put together again.
type logged struct {
	stdout, stderr string
	entries        []testbed.LogLine
}

// logged waits for the log of an ended container to be complete: the writer may
// still hold the last bytes at the moment in which the exit becomes visible.
// Logs that do not parse fail the check.
func (c *container) logged(t *testing.T) logged {
	t.Helper()
	path := c.logFile()
	var last int64 = -1
	for range 100 {
		fi, err := os.Stat(path)
		must(t, err, "log file")
		if c.status(t).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && fi.Size() == last {
			break
		}
		last = fi.Size()
		time.Sleep(30 * time.Millisecond)
	}
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
	for _, path := range paths {
		b, err := os.ReadFile(path)
		must(t, err, "read log")
		// What comes after the last newline is still being written.
		entries, err := testbed.ParseLog(b[:bytes.LastIndexByte(b, '\n')+1])
		must(t, err, path)
		for _, e := range entries {
			l.add(e)
		}
	}
	return l
}

func (l *logged) add(e testbed.LogLine) {
	l.entries = append(l.entries, e)
	text := e.Text
	if !e.Partial {
		text += "\n"
	}
	if e.Stream == "stdout" {
		l.stdout += text
	} else {
		l.stderr += text
	}
}

func clip(b []byte) []byte {
	if len(b) > 120 {
		return b[:120]
	}
	return b
}
