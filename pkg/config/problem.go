package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one mistake in a configuration.
type Problem struct {
	// File is the path of the file, or the flag or environment that the value
	// came from.
	File string
	// Line and Column begin at 1; they are 0 if the mistake has no place, such
	// as a key that is missing.
	Line, Column int
	// Key is the full TOML key, such as runtimes.kata.runtime_path.
	Key string
	// Message says what is wrong and what is right.
	Message string
	// Suggestion is what was probably meant, or empty.
	Suggestion string

	// handler is set when the file is right but this machine lacks what the
	// handler needs. Such a problem concerns that handler alone.
	handler string
}

// Error is "file:line:col: key: message (did you mean "x"?)" without the parts
// that are not known.
func (p Problem) Error() string {
	var b strings.Builder
	if at := (Origin{p.File, p.Line, p.Column}).place(); at != "" {
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

// Problems are all the mistakes of a configuration, sorted by place.
type Problems []Problem

// Error has one problem on each line.
func (p Problems) Error() string { return strings.Join(p.Lines(), "\n") }

// Lines are the texts of all problems.
func (p Problems) Lines() []string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return lines
}

// Split separates mistakes in files from what this machine lacks.
func (p Problems) Split() (mistakes, lacks Problems) {
	for _, one := range p {
		if one.handler == "" {
			mistakes = append(mistakes, one)
		} else {
			lacks = append(lacks, one)
		}
	}
	return mistakes, lacks
}

// sorted returns the problems by file, line, column and key, each once.
func (p Problems) sorted() Problems {
	s := slices.Clone(p)
	slices.SortStableFunc(s, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Message, b.Message),
		)
	})
	return slices.Compact(s)
}
