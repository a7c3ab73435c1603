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

	"sigs.k8s.io/yaml"
)

// maxSize is the largest accepted file, in bytes. etcd accepts 1.5 MiB for each object.
const maxSize = 64 << 20

// documents splits a file into its documents. Documents with only comments are omitted and not
// counted.
func documents(file string, text []byte) ([]*document, error) {
	switch {
	case len(text) > maxSize:
		return nil, Problems{{Source: Source{File: file}, Text: fmt.Sprintf("is larger than %d MiB", maxSize>>20)}}
	case !utf8.Valid(text):
		return nil, Problems{{Source: Source{File: file}, Text: "is not UTF-8 text, so neither YAML nor JSON"}}
	}
	if all, ok := jsonDocuments(text); ok {
		return all, nil
	}
	var all []*document
	begin, at := 0, 0
	end := func() {
		if part := text[begin:at]; !blank(part) {
			all = append(all, newDocument(text, begin, at))
		}
		begin = at
	}
	for line := range bytes.Lines(text) {
		if separates(line, "---") || separates(line, "...") {
			end()
		}
		if at += len(line); separates(line, "...") {
			begin = at
		}
	}
	end()
	return all, nil
}

// separates reports whether a line begins with the document separator mark.
func separates(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n"))
}

// blank reports whether a document has only its separator, comments, directives and white space.
func blank(text []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("---"))) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// jsonDocuments returns the values of a JSON file. Another file that begins with a brace may be
// YAML.
func jsonDocuments(text []byte) ([]*document, bool) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, false
	}
	var all []*document
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var one json.RawMessage
		err := decoder.Decode(&one)
		if err != nil {
			return all, errors.Is(err, io.EOF)
		}
		end := int(decoder.InputOffset())
		all = append(all, newDocument(text, end-len(one), end))
	}
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// json converts a document as kubectl would. Duplicate keys are mistakes.
func (d *document) json(s Source) ([]byte, *Problem) {
	if json.Valid(d.text) {
		return d.text, nil
	}
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return text, nil
	}
	p := &Problem{Source: s, line: d.line}
	why := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: unmarshal errors:\n  ", "error unmarshaling JSON: ", "yaml: "} {
		why = strings.TrimPrefix(why, prefix)
	}
	if m := yamlLine.FindStringSubmatch(why); m != nil {
		n, _ := strconv.Atoi(m[1]) // yamlLine matches only digits
		p.line = d.line + max(n, 1) - 1
		why = strings.TrimPrefix(why, m[0])
	}
	p.Text = "is not YAML: " + why
	return nil, p
}
