package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/pkg/handler"
)

// document is one parsed file: go-toml's values, and where every key is, which
// go-toml's decoder does not tell.
type document struct {
	file string
	// main marks the main file; the others are drop-ins.
	main    bool
	values  map[string]any
	origins map[string]Origin
	// handlers are the names under [runtimes], as far as the file can be read.
	handlers []string
	// problems are those of reading and parsing.
	problems Problems
	// absent says that there is no such file.
	absent bool
	// size is in bytes.
	size int64
	// text is what was read of a file of berth's own.
	text []byte
}

// parse never fails as a whole: what cannot be read becomes problems. A syntax
// error ends a file, since nothing after it can be trusted. Of two definitions
// of one key the first is kept.
func parse(file string, data []byte) *document {
	doc := parseTOML(file, data)
	doc.handlers = handlerNames(handlerHeader, data, doc.values["runtimes"])
	checkVersion(doc)
	return doc
}

// parseTOML is parse without what is berth's own about a file.
func parseTOML(file string, data []byte) *document {
	doc := &document{file: file, values: map[string]any{}, origins: map[string]Origin{}}
	s := &scan{doc: doc, data: data, lines: lineStarts(data), seen: map[string]Origin{}, arrays: map[string]int{}}
	s.run()
	if s.tooDeep {
		return doc
	}
	if err := toml.Unmarshal(s.withoutDuplicates(), &doc.values); err != nil {
		doc.values = map[string]any{}
		doc.problems = append(doc.problems, syntaxProblem(file, data, err))
	}
	return doc
}

// checkVersion leaves nothing of a file that is written for another version:
// what its keys mean is not known.
func checkVersion(d *document) {
	v, there := d.values["version"].(int64)
	if !there || v == Version {
		return
	}
	at := d.origins["version"]
	d.values = map[string]any{}
	d.problems = append(d.problems, Problem{
		File: at.File, Line: at.Line, Column: at.Column, Key: "version",
		Message: fmt.Sprintf("is %d; this berth supports version %d", v, Version),
	})
}

// bareWord is a line that sets a key to something without quotes.
var bareWord = regexp.MustCompile(`^[ \t]*[A-Za-z0-9_."-]+[ \t]*=[ \t]*([A-Za-z/~.$][^\s#"']*)[ \t]*(#.*)?\r?$`)

func syntaxProblem(file string, data []byte, err error) Problem {
	p := Problem{File: file, Message: strings.TrimPrefix(err.Error(), "toml: ")}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		p.Line, p.Column = at.Position()
		p.Key = joinKey(at.Key()...)
		lines := bytes.SplitN(data, []byte("\n"), p.Line+1)
		if p.Line > len(lines) {
			return p
		}
		if m := bareWord.FindSubmatch(lines[p.Line-1]); m != nil {
			p.Message, p.Suggestion = "is not a valid value; strings need quotes", quote(string(m[1]))
		}
	}
	return p
}

var handlerHeader = regexp.MustCompile(`(?m)^[ \t]*\[[ \t]*runtimes[ \t]*\.[ \t]*["']?([A-Za-z0-9_-]+)`)

// handlerNames finds the handlers of a file by its values, and by the headers
// of their tables, so that a file with a syntax error still says which
// handlers it was meant to have.
func handlerNames(header *regexp.Regexp, data []byte, runtimes any) []string {
	names := map[string]bool{}
	for _, m := range header.FindAllSubmatch(data, -1) {
		names[string(m[1])] = true
	}
	if tables, ok := runtimes.(map[string]any); ok {
		for name := range tables {
			names[name] = true
		}
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool { return handler.ValidName(name) != nil })
	return slices.Sorted(maps.Keys(names))
}

// bareKey says whether a key needs no quotes.
func bareKey(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return s != ""
}

// joinKey writes a key as TOML does, with quotes where they are needed.
func joinKey(parts ...string) string {
	quoted := make([]string, len(parts))
	for i, p := range parts {
		quoted[i] = p
		if !bareKey(p) {
			quoted[i] = fmt.Sprintf("%q", p)
		}
	}
	return strings.Join(quoted, ".")
}
