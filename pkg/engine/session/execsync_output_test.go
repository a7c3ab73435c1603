package session

import (
	"bytes"
	"path/filepath"
	"testing"
)

// A full disk costs the end of what a command wrote, and not how it ended.
func TestOutputThatCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	o, err := newOutput(filepath.Join(dir, "out"), filepath.Join(dir, "not-there"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	written := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	o.keep(written)
	o.keep(written)
	e := &Execution{stdout: o, stderr: o}
	answer, err := e.Answer(7)
	if err != nil || answer.GetExitCode() != 7 || !bytes.Equal(answer.GetStdout(), written[:execInMemory]) {
		t.Errorf("exit code %d with %d bytes: %v", answer.GetExitCode(), len(answer.GetStdout()), err)
	}
}
