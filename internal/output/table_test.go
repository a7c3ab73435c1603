package output

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
)

func TestTablesFitTheTerminal(t *testing.T) {
	tab := &Table{Header: []string{"NAME", "STATE", "REASON"}}
	tab.Add("runc (default)", "ready", "")
	tab.Add("kata", "not-ready", strings.Repeat("the shim does not answer ", 10))
	for _, width := range []int{40, 60, 80, 200} {
		for line := range strings.Lines(tab.Text(width)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("in %d columns a line has %d: %s", width, n, line)
			}
		}
	}
	if text := tab.Text(60); !strings.Contains(text, "…") || !strings.Contains(text, "runc (default)  ready") {
		t.Errorf("in 60 columns the table is\n%s", text)
	}
	if text := tab.Text(0); strings.Contains(text, "…") {
		t.Errorf("without a terminal the table is\n%s", text)
	}
	if text := tab.Text(5); !strings.Contains(text, "NAME") {
		t.Errorf("in a terminal that is too narrow the table is\n%s", text)
	}
}

func TestTablesByFlags(t *testing.T) {
	for line, want := range map[string]string{
		"":                      "NAME            PODS\nrunc (default)  12\n",
		"--no-headers":          "runc (default)  12\n",
		"-q":                    "runc\n",
		"-q --no-headers":       "runc\n",
		"--quiet --output json": "use only one of --output, --quiet; see \"list --help\"",
	} {
		var f TableFlags
		var form string
		var out strings.Builder
		c := &cobra.Command{Use: "list", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
			tab := &Table{Header: []string{"NAME", "PODS"}, Names: []string{"runc"}}
			tab.Add("runc (default)", "12")
			return Encode(&out, form, nil, f.Table(tab))
		}}
		Flag(c, &form, Forms...)
		f.ListFlags(c, "names")
		commandline.Check(c)
		c.SetArgs(strings.Fields(line))
		if err := c.Execute(); err != nil {
			out.WriteString(err.Error())
		}
		test.Equal(t, line, out.String(), want)
	}
}

// Line breaks and tabs in a cell become spaces.
func TestCellsAreOneLine(t *testing.T) {
	tab := &Table{Header: []string{"A", "B"}}
	tab.Add("x\ny", "z\t\tz")
	test.Equal(t, "table", tab.Text(0), "A    B\nx y  z z\n")
}
