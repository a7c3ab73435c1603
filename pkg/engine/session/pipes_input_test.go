package session

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// A shim may report that a command runs before the shim has opened the command's stdin.
func TestInputThatEndsBeforeItIsOpened(t *testing.T) {
	for name, typed := range map[string]string{"something": "all of it", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			p := test.Value(newPipes(filepath.Join(t.TempDir(), "exec"), true, false, false))(t)
			defer p.close()
			ended := make(chan struct{})
			p.copy(strings.NewReader(typed), nil, nil, func() { close(ended) })
			select {
			case <-ended:
				t.Fatal("the input ended before it could be read")
			case <-time.After(50 * time.Millisecond):
			}
			f := test.Value(os.Open(p.in.path()))(t)
			defer f.Close()
			test.Equal(t, "read", string(test.Value(io.ReadAll(f))(t)), typed)
			<-ended
		})
	}
}

func TestInputThatNobodyOpens(t *testing.T) {
	p := test.Value(newPipes(filepath.Join(t.TempDir(), "exec"), true, false, false))(t)
	defer p.close()
	ended := make(chan struct{})
	p.copy(strings.NewReader("lost"), nil, nil, func() { close(ended) })
	select {
	case <-ended:
	case <-time.After(10 * stdinOpenTimeout):
		t.Error("the copy still waits for a reader")
	}
}
