package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// maxSize is the largest file that is read, in bytes. etcd takes 1.5 MiB an object.
const maxSize = 64 << 20

// documents cuts a file into its documents. Those that hold nothing but comments
// are left out, and not counted.
func documents(file string, text []byte) ([]*document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	switch {
	case len(text) > maxSize:
		return nil, Problems{{Source: Source{File: file}, Text: fmt.Sprintf("is larger than %d MiB", maxSize>>20)}}
	case !utf8.Valid(text):
		return nil, Problems{{Source: Source{File: file}, Text: "is not UTF-8 text, so neither YAML nor JSON"}}
	case isJSON(text):
		return jsonDocuments(file, text)
	}
	var all []*document
	// skipped is where that begins which belongs to no document.
	skipped, begin, line := 0, 0, 1
	end := func(at int) {
		if part := text[begin:at]; !blank(part) {
			d := newDocument(part, line)
			d.before = text[skipped:begin]
			all, skipped = append(all, d), at
		}
		line += bytes.Count(text[begin:at], []byte("\n"))
		begin = at
	}
	for at := 0; at < len(text); {
		next := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		if at > begin && separates(text[at:next]) {
			end(at)
		}
		at = next
	}
	end(len(text))
	if len(all) > 0 {
		all[len(all)-1].after = text[skipped:]
	}
	return all, nil
}

// separates says whether a line begins a document.
func separates(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n"))
}

// blank says whether there is nothing but comments, directives, dashes and white space.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if separates(line) {
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' && string(line) != "..." {
			return false
		}
	}
	return true
}

// isJSON is decided as kubectl does it: YAML that begins with a brace is rare.
func isJSON(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

func jsonDocuments(file string, text []byte) ([]*document, error) {
	var all []*document
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var one json.RawMessage
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			if flow, ok := flowDocuments(text); ok {
				return flow, nil
			}
			at := decoder.InputOffset()
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				at = syntax.Offset
			}
			return nil, Problems{{
				Source: Source{File: file, Document: len(all) + 1}, line: lineAt(text, int(at)),
				Text: "is not JSON: " + err.Error(),
			}}
		}
		end := int(decoder.InputOffset())
		all = append(all, newDocument(one, lineAt(text, end-len(one))))
	}
}

// flowDocuments are those of YAML that begins with a brace.
func flowDocuments(text []byte) ([]*document, bool) {
	decoder := yamlv3.NewDecoder(bytes.NewReader(text))
	for {
		var any yamlv3.Node
		if err := decoder.Decode(&any); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, false
		}
	}
	// A line in front makes it YAML for whoever looks at the first character.
	all, err := documents("", append([]byte("---\n"), text...))
	if err != nil {
		return nil, false
	}
	for _, d := range all {
		d.line--
	}
	all[0].text = all[0].text[len("---\n"):]
	all[0].line++
	return all, true
}

func lineAt(text []byte, offset int) int {
	return 1 + bytes.Count(text[:min(max(offset, 0), len(text))], []byte("\n"))
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

var ended = regexp.MustCompile(`(?m)^\.\.\.(\s|$)`)

// whole fails if there is something behind three dots, which would be left out.
func (d *document) whole(s Source) error {
	at := ended.FindIndex(d.text)
	if len(at) == 0 || blank(d.text[at[1]:]) {
		return nil
	}
	var all yamlv3.Node
	decoder := yamlv3.NewDecoder(bytes.NewReader(d.text))
	if err := decoder.Decode(&all); err == nil && errors.Is(decoder.Decode(&all), io.EOF) {
		return nil // they are part of a text
	}
	return Problem{Source: s, line: d.line + bytes.Count(d.text[:at[0]], []byte("\n")), Text: "unexpected text after \"...\"; begin each document with \"---\""}
}

// json converts a document as kubectl would. Keys that are there twice are mistakes.
func (d *document) json(s Source) ([]byte, error) {
	if isJSON(d.text) && json.Valid(d.text) {
		return d.text, nil
	}
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return text, d.whole(s)
	}
	p := Problem{Source: s, line: d.line}
	p.Text = strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: unmarshal errors:\n  ")
	p.Text = strings.TrimPrefix(p.Text, "error unmarshaling JSON: ")
	if m := yamlLine.FindStringSubmatch("yaml: " + strings.TrimPrefix(p.Text, "yaml: ")); m != nil {
		n, _ := strconv.Atoi(m[1]) // at most digits; a number too large is 0
		p.line = d.line + max(n, 1) - 1
		p.Text = strings.TrimPrefix("yaml: "+strings.TrimPrefix(p.Text, "yaml: "), m[0])
	}
	p.Text = "is not YAML: " + strings.TrimPrefix(p.Text, "yaml: ")
	return nil, p
}
