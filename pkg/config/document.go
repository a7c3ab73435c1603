package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// document is one file of a configuration.
type document struct {
	*tomlfile.Document
	// main marks the main file; the others are drop-ins.
	main bool
	// handlers are the names under [runtimes], as far as the file can be read.
	handlers []string
	// absent says that there is no such file.
	absent bool
	// text is what was read of a file of berth's own.
	text []byte
}

// decoder is one of a document of berth's.
type decoder struct {
	tomlfile.Decoder
	// unfound says why a handler that is imported has no runtime_path.
	unfound string
	// search is that of Options.
	search []string
	// snapshotters are what handlers may name.
	snapshotters []string
}

func newDecoder(doc *document, search, snapshotters []string) *decoder {
	return &decoder{
		Decoder: tomlfile.Decoder{Doc: doc.Document, Unknown: unknownKey}, search: search, snapshotters: snapshotters,
	}
}

// parse never fails as a whole, as tomlfile.Parse.
func parse(file string, data []byte) *document {
	doc := &document{Document: tomlfile.Parse(file, data), text: data}
	doc.handlers = handlerNames(handlerHeader, data, doc.Values["runtimes"])
	checkVersion(doc)
	return doc
}

// checkVersion leaves nothing of a file that is written for another version:
// what its keys mean is not known.
func checkVersion(d *document) {
	v, there := d.Values["version"].(int64)
	if !there || v == Version {
		return
	}
	d.Values = map[string]any{}
	d.Problems = append(d.Problems, Problem{
		Origin: d.Origins["version"], Key: "version",
		Message: fmt.Sprintf("is %d; this berth supports version %d", v, Version),
	})
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
