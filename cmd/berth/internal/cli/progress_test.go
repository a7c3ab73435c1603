package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestProgressWithoutATerminalIsLines(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out)
	p.Step("%d left", 2)
	p.Step("%d left", 1)
	p.End()
	test.Equal(t, "output", out.String(), "2 left\n1 left\n")
}

func TestProgressOnATerminalIsOneLine(t *testing.T) {
	var out bytes.Buffer
	p := &Progress{out: &out, width: 10}
	p.Step("a long step indeed")
	p.Step("short")
	p.End()
	if got := out.String(); strings.Contains(got, "\n") || !strings.HasPrefix(got, "\ra long s…\rshort    \r") || !strings.HasSuffix(got, "\r") {
		t.Errorf("got %q", got)
	}
}
