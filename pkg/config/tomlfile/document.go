// Package tomlfile reads a TOML file into structs, with the origin of every value, and for every
// mistake its place, a message and a suggestion.
package tomlfile

import (
	"bytes"
	"errors"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Document is one parsed file: go-toml's values, and the origin of every key, which go-toml's
// decoder does not keep.
type Document struct {
	File    string
	Values  map[string]any
	Origins map[string]Origin
	// Problems are the mistakes found while reading and parsing.
	Problems Problems
}

// Parse parses a file. Its mistakes become problems: a syntax error drops all values, and of two
// definitions of one key the first is kept.
func Parse(file string, data []byte) *Document {
	doc := &Document{File: file, Values: map[string]any{}, Origins: map[string]Origin{}}
	s := &scan{doc: doc, data: data, lines: lineStarts(data), seen: map[string]Origin{}, arrays: map[string]int{}}
	s.run()
	if s.tooDeep {
		return doc
	}
	if err := toml.Unmarshal(s.withoutDuplicates(), &doc.Values); err != nil {
		doc.Values = map[string]any{}
		doc.Problems = append(doc.Problems, syntaxProblem(file, data, err))
	}
	return doc
}

// bareWord matches a line that sets a key to text without quotes.
var bareWord = regexp.MustCompile(`^[ \t]*[A-Za-z0-9_."-]+[ \t]*=[ \t]*([A-Za-z/~.$][^\s#"']*)[ \t]*(#.*)?\r?$`)

func syntaxProblem(file string, data []byte, err error) Problem {
	p := Problem{Origin: Origin{File: file}, Message: strings.TrimPrefix(err.Error(), "toml: ")}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		p.Line, p.Column = at.Position()
		p.Key = JoinKey(at.Key()...)
		lines := bytes.SplitN(data, []byte("\n"), p.Line+1)
		if p.Line > len(lines) {
			return p
		}
		if m := bareWord.FindSubmatch(lines[p.Line-1]); m != nil {
			p.Message, p.Suggestion = "is not a valid value; strings need quotes", Quote(string(m[1]))
		}
	}
	return p
}

// bareKey matches a key that needs no quotes.
var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// JoinKey joins a dotted TOML key, with quotes where needed.
func JoinKey(parts ...string) string {
	quoted := make([]string, len(parts))
	for i, p := range parts {
		quoted[i] = p
		if !bareKey.MatchString(p) {
			quoted[i] = Quote(p)
		}
	}
	return strings.Join(quoted, ".")
}

// Under appends one part to a key.
func Under(prefix, name string) string {
	if prefix == "" {
		return JoinKey(name)
	}
	return prefix + "." + JoinKey(name)
}
