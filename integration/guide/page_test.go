package guide

import (
	"fmt"
	"regexp"
	"strings"
)

// step is one step of a page: a block of commands, or a direction for the test, which readers do
// not see.
type step struct {
	line int
	// commands is the block; output is what the page shows below it, if shown is set.
	commands string
	output   string
	shown    bool
	// status is the exit status of the commands; anyStatus if it depends on the machine.
	status int
	// meanwhile is a direction that is carried out while the commands run.
	meanwhile string
	// direction is set where there are no commands.
	direction string
}

// notRun are the accepted reasons for not executing a block of commands.
var notRun = []string{
	"needs systemd as process 1",
	"needs an API server",
	"needs crictl",
	"needs a private registry",
}

const anyStatus = -1

var (
	direction = regexp.MustCompile(`^<!-- (test|not run): (.*) -->$`)
	status    = regexp.MustCompile(`^status (\d+)$`)
)

// under returns the part of a page under a heading of the second level, or the whole page without
// a heading. All other lines are empty, so that line numbers stay.
func under(page, heading string) string {
	if heading == "" {
		return page
	}
	lines, within := strings.Split(page, "\n"), false
	for i, line := range lines {
		begins := strings.HasPrefix(line, "## ")
		if begins {
			within = line == heading
		}
		if begins || !within {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// parse reads the steps of a page. Code is in fences with a kind: sh is executed, text is the
// output of the commands above it, toml and yaml are files.
func parse(page string) ([]step, error) {
	p := parser{lines: strings.Split(page, "\n")}
	for p.at < len(p.lines) {
		if err := p.one(); err != nil {
			return nil, fmt.Errorf("line %d: %w", p.at+1, err)
		}
	}
	return p.steps, nil
}

type parser struct {
	lines []string
	at    int
	steps []step
	// next collects the directions for the next block.
	next    step
	skipped string
	// after is set while only blank lines have followed a block of commands.
	after bool
}

func (p *parser) one() error {
	line := p.lines[p.at]
	if d := direction.FindStringSubmatch(line); d != nil {
		p.after = false
		p.at++
		return p.direct(d[1], d[2])
	}
	if kind, ok := strings.CutPrefix(line, "```"); ok {
		return p.block(kind)
	}
	if strings.HasPrefix(line, "    ") {
		return fmt.Errorf("code without a fence, so its kind is unknown")
	}
	if line != "" {
		p.after = false
	}
	p.at++
	return nil
}

func (p *parser) direct(kind, what string) error {
	if kind == "not run" {
		for _, reason := range notRun {
			if what == reason {
				p.skipped = what
				return nil
			}
		}
		return fmt.Errorf("%q is not a reason in notRun", what)
	}
	if what == "status any" { // it depends on the machine
		p.next.status = anyStatus
		return nil
	}
	if s := status.FindStringSubmatch(what); s != nil {
		_, err := fmt.Sscan(s[1], &p.next.status)
		return err
	}
	if meanwhile, ok := strings.CutPrefix(what, "meanwhile "); ok {
		p.next.meanwhile = meanwhile
		return nil
	}
	p.steps = append(p.steps, step{line: p.at, direction: what})
	return nil
}

func (p *parser) block(kind string) error {
	begin := p.at
	var text strings.Builder
	for p.at++; ; p.at++ {
		if p.at == len(p.lines) || strings.HasPrefix(p.lines[p.at], "```") && p.lines[p.at] != "```" {
			p.at = begin
			return fmt.Errorf("the block does not end")
		}
		if p.lines[p.at] == "```" {
			break
		}
		text.WriteString(p.lines[p.at] + "\n")
	}
	p.at++
	switch {
	case kind == "sh" && p.skipped != "":
		p.skipped, p.after = "", false
	case kind == "sh":
		p.next.line, p.next.commands = begin+1, text.String()
		p.steps, p.next, p.after = append(p.steps, p.next), step{}, true
	case kind == "text" && p.after:
		last := &p.steps[len(p.steps)-1]
		last.output, last.shown, p.after = text.String(), true, false
	case kind == "toml" || kind == "yaml" || kind == "text":
		p.after = false
	default:
		p.at = begin
		return fmt.Errorf("the kind of the block is %q, want sh, text, toml or yaml", kind)
	}
	return nil
}

// differ replaces what differs between machines and between runs.
var differ = []struct {
	of *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:.]+Z\b`), "TIME"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "SHA256"},
	{regexp.MustCompile(`\b[0-9a-f]{12,16}\b`), "ID"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(h|m|s|ms|µs))+\b`), "SPAN"},
	{regexp.MustCompile(`\b(generation:?|pid) \d+`), "$1 N"},
	{regexp.MustCompile(`\b\d+ bytes`), "N bytes"},
	{regexp.MustCompile(`\bcrun \d+(\.\d+)+\b`), "crun VERSION"},
	{regexp.MustCompile(`\brunsc [\w.+-]+`), "runsc VERSION"},
	{regexp.MustCompile(`\bcontainerd v\d+(\.\d+)+\S*`), "containerd VERSION"},
	{regexp.MustCompile(`\b\d+ ok, \d+ warnings, \d+ failures`), "N ok, N warnings, N failures"},
	{regexp.MustCompile(`[ \t]+`), " "},
	// The generation in the list of handlers, which follows the number of pods.
	{regexp.MustCompile(`\b((?:ready|not-ready|cordoned|draining) (?:oci|shim|cri) .*? \d+) \d+\b`), "$1 GEN"},
}

func normal(text string) []string {
	for _, d := range differ {
		text = d.of.ReplaceAllString(text, d.as)
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// says is whether the output matches the page. On the page a line "..." stands for any number of
// lines, and "..." at the end of a line for its rest. missing is the first line that is not in the
// output.
func says(page, output string) (missing string, ok bool) {
	want, got := normal(page), normal(output)
	anywhere := false
	for _, w := range want {
		if w == "..." {
			anywhere = true
			continue
		}
		i := 0
		for anywhere && i < len(got) && !same(w, got[i]) {
			i++
		}
		if i == len(got) || !same(w, got[i]) {
			return w, false
		}
		got, anywhere = got[i+1:], false
	}
	if len(got) > 0 && !anywhere {
		return "no more lines, but the output continues: " + got[0], false
	}
	return "", true
}

func same(want, got string) bool {
	if begin, ok := strings.CutSuffix(want, "..."); ok {
		return strings.HasPrefix(got, begin)
	}
	return want == got
}
