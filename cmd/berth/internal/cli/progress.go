package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/printable"
)

// Progress shows the progress of work: on a terminal in one line that is overwritten, otherwise as
// a line for each step.
type Progress struct {
	out   io.Writer
	width int // of the terminal, or 0
	shown int
}

// NewProgress returns a Progress that writes to out.
func NewProgress(out io.Writer) *Progress {
	return &Progress{out: output.Raw(out), width: output.Width(out)}
}

// Step shows the current step.
func (p *Progress) Step(format string, args ...any) {
	line := printable.Line(fmt.Sprintf(format, args...))
	if p.width == 0 {
		fmt.Fprintln(p.out, line)
		return
	}
	line = output.Cut(line, p.width-1)
	length := utf8.RuneCountInString(line)
	fmt.Fprintf(p.out, "\r%s%s", line, strings.Repeat(" ", max(0, p.shown-length)))
	p.shown = length
}

// Every calls step repeatedly until stop is called, with an interval between the calls.
func (p *Progress) Every(interval time.Duration, step func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		defer p.End()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(interval):
				step()
			}
		}
	})
	return func() { cancel(); ended.Wait() }
}

// End clears the progress line before other output.
func (p *Progress) End() {
	if p.width > 0 && p.shown > 0 {
		fmt.Fprintf(p.out, "\r%s\r", strings.Repeat(" ", p.shown))
		p.shown = 0
	}
}
