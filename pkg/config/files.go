package config

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// document is one file of a configuration.
type document struct {
	*tomlfile.Document
	// main marks the main file; the others are drop-ins.
	main bool
	// handlers are the names under [runtimes], as far as the file is readable.
	handlers []string
	// absent is set if the file does not exist.
	absent bool
	// text is the content of one of berth's own files.
	text []byte
}

type decoder struct {
	tomlfile.Decoder
	// unfound is why an imported handler has no runtime_path.
	unfound string
	// search is Options.SearchPath.
	search []string
	// snapshotters are the names of snapshotters that a handler may use.
	snapshotters []string
}

func newDecoder(doc *document, search, snapshotters []string) *decoder {
	return &decoder{
		Decoder: tomlfile.Decoder{Doc: doc.Document, Unknown: unknownKey}, search: search, snapshotters: snapshotters,
	}
}

// parse never fails as a whole, like tomlfile.Parse.
func parse(file string, data []byte) *document {
	doc := &document{Document: tomlfile.Parse(file, data), text: data}
	doc.handlers = handlerNames(handlerHeader, data, doc.Values["runtimes"])
	checkVersion(doc)
	return doc
}

// checkVersion drops all keys of a file with another format version: their meaning is unknown.
func checkVersion(d *document) {
	v, there := d.Values["version"].(int64)
	if !there || v == formatVersion {
		return
	}
	d.Values = map[string]any{}
	d.Problems = append(d.Problems, Problem{
		Origin: d.Origins["version"], Key: "version",
		Message: fmt.Sprintf("is %d; this berth supports version %d", v, formatVersion),
	})
}

var handlerHeader = regexp.MustCompile(`(?m)^[ \t]*\[[ \t]*runtimes[ \t]*\.[ \t]*["']?([A-Za-z0-9_-]+)`)

// handlerNames returns the handlers of a file, from its values and from the headers of their
// tables, so that handlers in a file with a syntax error are included.
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

// readAll reads the main file and the drop-ins, in rising precedence. An unreadable file becomes a
// document with only problems.
func readAll(o Options) []*document {
	var docs []*document
	file := o.mainFile()
	text, d := content(&hostfiles.Looker{}, file, hostfiles.MaxFileSize)
	if d == nil {
		d = parse(file, text)
	}
	if o.File != "" || !d.absent {
		d.main = true
		docs = append(docs, d)
	} else if problem := gone("file", file, o); problem != "" {
		docs = append(docs, unread(file, problem))
	}
	files, unreadable := dropInFiles(o)
	docs = append(docs, unreadable...)
	return append(docs, readEach(files, o.Overlay, parse)...)
}

// readEach reads files of directories, up to a total size. It skips files removed since the
// listing. The overlay's text replaces a file's.
func readEach(files []string, overlay map[string][]byte, parse func(file string, text []byte) *document) []*document {
	var docs []*document
	left, l := int64(hostfiles.MaxTotalSize), &hostfiles.Looker{}
	for _, f := range files {
		text, laid := overlay[f]
		var d *document
		if !laid {
			text, d = content(l, f, left)
		}
		if d == nil {
			left -= int64(len(text))
			d = parse(f, text)
		}
		if d = orDangling(d); d != nil {
			docs = append(docs, d)
		}
	}
	return docs
}

// orDangling returns d, or nil if its file is missing, or a problem if it is a dangling link.
func orDangling(d *document) *document {
	if !d.absent {
		return d
	}
	link, err := os.Readlink(d.File)
	if err != nil {
		return nil
	}
	return unread(d.File, fmt.Sprintf("is a link to %s, which does not exist", link))
}

// dropInFiles lists *.toml of the directories in lexical order of their names. The administrator's
// file replaces the vendor's of the same name. Names that begin with a dot are left out: editors
// and package managers create such files.
func dropInFiles(o Options) (files []string, unreadable []*document) {
	byName := map[string]string{}
	for _, dir := range []string{o.vendorDir(), o.dropInDir()} {
		names, problem := hostfiles.List(dir, isDropIn)
		if problem == "" && !hostfiles.IsDir(dir) {
			problem = gone("directory", dir, o)
		}
		if problem != "" {
			unreadable = append(unreadable, unread(dir, problem))
		}
		for _, name := range names {
			if text, laid := o.Overlay[filepath.Join(dir, name)]; !laid || text != nil {
				byName[name] = filepath.Join(dir, name)
			}
		}
	}
	for file, text := range o.Overlay {
		if text != nil {
			byName[filepath.Base(file)] = file
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		files = append(files, byName[name])
	}
	return files, unreadable
}

func isDropIn(e fs.DirEntry) bool {
	name := e.Name()
	return strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") && !e.IsDir()
}

func unread(file, message string) *document {
	return &document{Document: &tomlfile.Document{File: file, Problems: Problems{{Origin: Origin{File: file}, Message: message}}}}
}

// content reads one file of up to limit bytes. /dev/null counts as an empty file, so that a link to
// it disables a vendor's drop-in.
func content(l *hostfiles.Looker, file string, limit int64) ([]byte, *document) {
	got, late := hostfiles.Ask(l, "content", file, func() hostfiles.Fetched { return hostfiles.Fetch(file) })
	switch {
	case late:
		got.Mistake = "cannot be read: " + hostfiles.Hangs
	case int64(len(got.Data)) > limit:
		got.Mistake = fmt.Sprintf("is skipped: the files up to this one have more than %d bytes in total", hostfiles.MaxTotalSize)
	}
	if got.Mistake == "" {
		return got.Data, nil
	}
	d := unread(file, got.Mistake)
	d.absent = got.Absent
	return nil, d
}
