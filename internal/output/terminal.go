package output

import (
	"io"
	"slices"
	"unicode/utf8"

	"github.com/berth-cri/berth/pkg/printable"
)

// Terminal writes the output of commands and escapes control sequences: parts of it come from
// registries, runtimes and other daemons. Code that controls the terminal writes to Raw.
type Terminal struct {
	raw io.Writer
	// rest is an incomplete character at the end of the last write.
	rest []byte
}

// NewTerminal returns a Terminal that writes to w.
func NewTerminal(w io.Writer) *Terminal { return &Terminal{raw: w} }

// Raw returns the underlying writer of a Terminal, and other writers unchanged.
func Raw(w io.Writer) io.Writer {
	if t, ok := w.(*Terminal); ok {
		return t.raw
	}
	return w
}

// Write implements io.Writer. It keeps an incomplete character for the next call.
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
