package session

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// slowClient sleeps in every write.
type slowClient struct {
	bytes.Buffer
	pause time.Duration
}

func (c *slowClient) Write(b []byte) (int, error) {
	time.Sleep(c.pause) // in real time, because the FIFOs are the kernel's
	return c.Buffer.Write(b)
}

func sessionPipes(t *testing.T) (*pipes, *os.File) {
	t.Helper()
	p := test.Value(newPipes(filepath.Join(t.TempDir(), "exec-1"), false, true, false))(t)
	t.Cleanup(p.close)
	process := test.Value(os.OpenFile(p.out.path(), os.O_WRONLY, 0))(t)
	t.Cleanup(func() { _ = process.Close() })
	return p, process
}

func ended(t *testing.T, copied <-chan struct{}) {
	t.Helper()
	select {
	case <-copied:
	case <-time.After(20 * time.Second):
		t.Fatal("the output did not end")
	}
}

// The grace limits how long another process may hold an exited command's output open. It does
// not limit the client that reads the output.
func TestASlowClientGetsEverything(t *testing.T) {
	const grace = 20 * time.Millisecond
	p, process := sessionPipes(t)
	text := strings.Repeat("0123456789abcde\n", 4000) // in the pipe when the process ends
	client := &slowClient{pause: 5 * grace}
	copied := p.copy(nil, client, nil, nil)
	test.Must(t, test.Err(process.WriteString(text)))
	test.Must(t, process.Close())
	p.processEnded(grace)
	ended(t, copied)
	if client.String() != text {
		t.Errorf("the client got %d of %d bytes", client.Len(), len(text))
	}
}

func TestAnOutputThatIsHeldOpenEnds(t *testing.T) {
	for _, grace := range []time.Duration{time.Second, 50 * time.Millisecond} {
		p, process := sessionPipes(t)
		var client bytes.Buffer
		copied := p.copy(nil, &client, nil, nil)
		test.Must(t, test.Err(process.WriteString("last")))
		p.processEnded(grace)
		ended(t, copied)
		test.Equal(t, "the result", client.String(), "last")
	}
}

func TestPipesThatAreInTheWay(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "exec-1")
	test.Must(t, os.WriteFile(prefix+"-err", nil, 0o600))
	if p, err := newPipes(prefix, true, true, true); err == nil {
		p.close()
		t.Fatal("a file was accepted as a pipe")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("pipes are left after the failure: %v, %v", left, err)
	}
}

func TestWhoseAPipeIs(t *testing.T) {
	for _, tc := range []struct {
		pipe, command string
		ok            bool
	}{
		{"stdin", "", false},
		{"stdout", "", false},
		{"stderr", "", false},
		{"exec-0011223344556677-in", "exec-0011223344556677", true},
		{"exec-0011223344556677-out", "exec-0011223344556677", true},
		{"attach-exec-0011223344556677-err", "", true},
		{"something-else", "something", false},
	} {
		command, ok := sessionOf(tc.pipe)
		if ok != tc.ok || ok && command != tc.command {
			t.Errorf("%s is of %q, %v", tc.pipe, command, ok)
		}
	}
}
