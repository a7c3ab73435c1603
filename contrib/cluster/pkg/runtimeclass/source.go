package runtimeclass

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// Source is the position of an object in a file.
type Source struct {
	File string
	// Document is the number of the document in the file, from 1.
	Document int
	// Path is the object's path inside the document, such as "items[3]"; empty if the document is
	// the object.
	Path string

	document *document
}

// document is a part of a file: a YAML document or a JSON value.
type document struct {
	text []byte
	// line is the text's first line in the file, from 1.
	line int
	// begin is the text's offset in the file.
	begin int

	root func() *yaml.Node
}

// newDocument returns the part of a file from begin to end. It is parsed on first use.
func newDocument(file []byte, begin, end int) *document {
	text := file[begin:end]
	return &document{text: text, line: 1 + bytes.Count(file[:begin], []byte("\n")), begin: begin, root: sync.OnceValue(func() *yaml.Node {
		var root yaml.Node
		if err := yaml.Unmarshal(text, &root); err != nil || len(root.Content) == 0 {
			return nil
		}
		return root.Content[0]
	})}
}

// Line returns the line of a field ("spec.containers[0].image"), else of its nearest existing
// parent. It is 0 for an object that is not from a file.
func (s Source) Line(field string) int {
	if s.document == nil {
		return 0
	}
	if node := nearest(s.document.root(), join(s.Path, field)); node != nil {
		return s.document.line + node.Line - 1
	}
	return s.document.line
}

// Where returns file:line and the document, of a field or, if that is empty, of the object.
func (s Source) Where(field string) string {
	if s.document == nil {
		return s.File
	}
	return fmt.Sprintf("%s:%d: document %d", s.File, s.Line(field), s.Document)
}

func join(path, field string) string {
	if path == "" || field == "" {
		return path + field
	}
	return path + "." + field
}

// nearest returns the node of a path or of its nearest existing parent. For a value with a key it
// returns the key, where the field's text begins.
func nearest(at *yaml.Node, path string) *yaml.Node {
	found := at
	for _, step := range steps(path) {
		for at != nil && at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		key, value := child(at, step)
		if value == nil {
			return found
		}
		found, at = key, value
	}
	return found
}

func child(at *yaml.Node, step string) (key, value *yaml.Node) {
	if at == nil {
		return nil, nil
	}
	switch at.Kind {
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at.Content) {
			return at.Content[i], at.Content[i]
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == step {
				return at.Content[i], at.Content[i+1]
			}
		}
	}
	return nil, nil
}

// steps cuts "items[3].metadata.labels[a.b/c]" into items, 3, metadata, labels, a.b/c.
func steps(path string) []string {
	var all []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			inside, rest, _ := strings.Cut(path[1:], "]")
			all, path = append(all, strings.Trim(inside, `"`)), rest
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			all, path = append(all, path[:end]), path[end:]
		}
	}
	return all
}

// Problem is a mistake in an object of a file.
type Problem struct {
	Source
	// Field is the path in the object, or empty.
	Field string
	Text  string

	// line is set for a document that is not YAML.
	line int
}

func (p Problem) Error() string {
	if p.line > 0 {
		return fmt.Sprintf("%s:%d: document %d: %s", p.File, p.line, p.Document, p.Text)
	}
	return p.Where(p.Field) + ": " + p.Text
}

// Problems are all mistakes of a file.
type Problems []Problem

// shown is the number of problems that an error lists.
const shown = 20

func (p Problems) Error() string {
	var lines []string
	for _, one := range p[:min(len(p), shown)] {
		lines = append(lines, one.Error())
	}
	if more := len(p) - shown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more like these", more))
	}
	return strings.Join(lines, "\n")
}
