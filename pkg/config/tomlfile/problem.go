package tomlfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Origin is the place where a value is set. The zero Origin is the built-in default.
type Origin struct {
	// File is a path, or "command line".
	File string
	// Line and Column begin at 1, and are 0 if unknown.
	Line, Column int
}

// String returns file:line, or "default".
func (o Origin) String() string {
	switch {
	case o.File == "":
		return "default"
	case o.Line == 0:
		return o.File
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

// Place returns file:line:column as far as known.
func (o Origin) Place() string {
	if o.File == "" || o.Line == 0 {
		return o.File
	}
	return fmt.Sprintf("%s:%d:%d", o.File, o.Line, o.Column)
}

// Compare orders by file, line and column.
func (o Origin) Compare(b Origin) int {
	return cmp.Or(cmp.Compare(o.File, b.File), cmp.Compare(o.Line, b.Line), cmp.Compare(o.Column, b.Column))
}

// Problem is one mistake in a configuration.
type Problem struct {
	// Origin is the place, as far as known: a missing key has no line.
	Origin
	// Key is the full TOML key, such as server.socket.
	Key string
	// Message describes the mistake and the correct form.
	Message string
	// Suggestion is the probably intended text, or empty.
	Suggestion string

	// Lacking is the handler with a missing dependency on this machine, though the file is correct.
	// Empty for a mistake in the file.
	Lacking string
}

// Error returns "file:line:col: key: message (did you mean "x"?)" without the unknown parts.
func (p Problem) Error() string {
	var b strings.Builder
	if at := p.Place(); at != "" {
		b.WriteString(at + ": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Message)
	if p.Suggestion != "" {
		fmt.Fprintf(&b, " (did you mean %q?)", p.Suggestion)
	}
	return b.String()
}

// Problems are mistakes of a configuration.
type Problems []Problem

// Error returns one problem per line.
func (p Problems) Error() string { return strings.Join(p.Lines(), "\n") }

// Lines returns the texts of all problems.
func (p Problems) Lines() []string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return lines
}

// Split separates mistakes in files from missing dependencies on this machine.
func (p Problems) Split() (mistakes, lacks Problems) {
	for _, one := range p {
		if one.Lacking == "" {
			mistakes = append(mistakes, one)
		} else {
			lacks = append(lacks, one)
		}
	}
	return mistakes, lacks
}

// Sorted returns the problems by file, line, column and key, without duplicates.
func (p Problems) Sorted() Problems {
	s := slices.Clone(p)
	slices.SortStableFunc(s, func(a, b Problem) int {
		return cmp.Or(a.Compare(b.Origin), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(s)
}
