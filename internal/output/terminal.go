package output

import (
	"io"
	"slices"
	"unicode/utf8"

	"github.com/berth-cri/berth/pkg/printable"
)

// Terminal writes what commands print, with everything escaped that would be an
// order to a terminal: some of it was written by registries, runtimes and other
// daemons. What knows what it does writes to Raw.
type Terminal struct {
	raw io.Writer
	// rest is the beginning of a character whose end was not written yet.
	rest []byte
}

// NewTerminal returns a Terminal before w.
func NewTerminal(w io.Writer) *Terminal { return &Terminal{raw: w} }

// Raw is what a writer writes to, if it is a Terminal, and else that itself.
func Raw(w io.Writer) io.Writer {
	if t, ok := w.(*Terminal); ok {
		return t.raw
	}
	return w
}

// Write implements io.Writer. It keeps a character that is not whole for the next.
func (t *Terminal) Write(text []byte) (int, error) {
	all := slices.Concat(t.rest, text)
	whole := len(all)
	for back := 1; back < utf8.UTFMax && back <= len(all); back++ {
		if at := len(all) - back; utf8.RuneStart(all[at]) {
			if !utf8.FullRune(all[at:]) {
				whole = at
			}
			break
		}
	}
	t.rest = all[whole:]
	if _, err := io.WriteString(t.raw, printable.Lines(string(all[:whole]))); err != nil {
		return 0, err
	}
	return len(text), nil
}
