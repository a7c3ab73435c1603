package printable_test

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/printable"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "",
		"plain text, 100 % of it":     "plain text, 100 % of it",
		`a "quoted" C:\path`:          `a "quoted" C:\path`,
		"Grüße, 世界 🚢":                 "Grüße, 世界 🚢",
		"\x1b]0;title\x07\x1b[2Jgone": `\u001b]0;title\u0007\u001b[2Jgone`,
		"a\nb\r\nc\td":                `a\nb\r\nc\td`,
		"over\rwritten":               `over\rwritten`,
		"\x00\x7f":                    `\u0000\u007f`,
		"\u009b31mred":                `\u009b31mred`,
		"cut \xe4\xb8 and \xff":       `cut \xe4\xb8 and \xff`,
		"a real \ufffd stays":         "a real \ufffd stays",
		"user\u202egpj.exe":           `user\u202egpj.exe`,
		"two\u2028lines":              `two\u2028lines`,
		"far \U000e0041 tag":          `far \udb40\udc41 tag`,
	} {
		got := printable.Line(text)
		test.Equal(t, fmt.Sprintf("%q is shown as", text), got, want)
		test.Equal(t, fmt.Sprintf("%s changes when it is shown again", got), printable.Line(got), got)
	}
}

func TestLines(t *testing.T) {
	if got, want := printable.Lines("a\n\tb\r\x1b[1m\n"), "a\n\tb\\r\\u001b[1m\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTextThatPrintsCostsNothing(t *testing.T) {
	if n := testing.AllocsPerRun(10, func() { printable.Line("a text as most are: köstlich") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
