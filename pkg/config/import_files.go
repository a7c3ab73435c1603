package config

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/imports"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// foreignFiles are the files of one other daemon.
type foreignFiles struct {
	docs  []*document
	notes []ImportNote
}

// foreignHeader finds handlers in files that cannot be parsed, as handlerHeader
// does in berth's own.
var foreignHeader = regexp.MustCompile(`(?m)^[ \t]*\[[^\]\n]*\.[ \t]*runtimes[ \t]*\.[ \t]*["']?([A-Za-z0-9_-]+)["']?[ \t]*[\].]`)

// readForeign reads files and directories in this order. What does not exist
// has nothing.
func readForeign(kind imports.Kind, paths []string) *foreignFiles {
	f := &foreignFiles{}
	var files []string
	for _, path := range paths {
		if !hostfiles.IsDir(path) {
			files = append(files, path)
			continue
		}
		files = append(files, f.directory(kind, path)...)
	}
	seen := map[string]bool{}
	left, l := int64(hostfiles.MaxTotalSize), hostfiles.NewLooker()
	for _, file := range files {
		if file = filepath.Clean(file); seen[file] || !filepath.IsAbs(file) {
			continue
		}
		seen[file] = true
		if d := readForeignFile(file, l, left); d != nil {
			left -= d.size
			f.docs = append(f.docs, d)
		}
	}
	return f
}

func readForeignFile(file string, l *hostfiles.Looker, most int64) *document {
	data, d := content(l, file, most)
	if d != nil {
		return orDangling(d)
	}
	return &document{Document: tomlfile.Parse(file, data), size: int64(len(data)), handlers: handlerNames(foreignHeader, data, nil)}
}

// directory lists what the other daemon would read. containerd is told *.toml;
// CRI-O takes every file, under any name (Kata's installer writes
// 99-kata-deploy), but it also takes what editors and package managers leave.
func (f *foreignFiles) directory(kind imports.Kind, dir string) []string {
	names, problem := hostfiles.List(dir, func(e fs.DirEntry) bool {
		if kind == imports.Containerd {
			return isDropIn(e)
		}
		if why := passedOver(e); why != "" {
			f.notes = append(f.notes, ImportNote{Origin: Origin{File: filepath.Join(dir, e.Name())}, Why: why})
			return false
		}
		return true
	})
	if problem != "" {
		f.docs = append(f.docs, unread(dir, problem))
	}
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// leftovers are endings that no configuration has which somebody wants.
var leftovers = []string{"~", ".bak", ".backup", ".old", ".orig", ".save", ".swp", ".swo", ".tmp", ".rpmsave", ".rpmnew", ".rpmorig"}

// passedOver says why an entry of a CRI-O directory is not read, or nothing.
func passedOver(e fs.DirEntry) string {
	name := e.Name()
	if e.IsDir() {
		return "is a directory; unlike CRI-O, berth does not read subdirectories; list it too if it is needed"
	}
	leftover := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.Contains(name, ".dpkg-")
	for _, end := range leftovers {
		leftover = leftover || strings.HasSuffix(name, end)
	}
	if leftover {
		return "looks like a backup file, which berth does not read, unlike CRI-O; remove it, or list it too if it is needed"
	}
	return ""
}

// names are those of files that count.
func (f *foreignFiles) names() []string {
	var names []string
	for _, d := range f.docs {
		if len(d.Problems) == 0 {
			names = append(names, d.File)
		}
	}
	return names
}

// parsed are the files that could be read. One with a mistake counts for
// nothing: what it says is not known.
func (f *foreignFiles) parsed() []imports.File {
	var files []imports.File
	for _, d := range f.docs {
		if len(d.Problems) == 0 {
			files = append(files, imports.File{Name: d.File, Values: d.Values})
		}
	}
	return files
}

// origin is where a key is, or the table that it is in.
func (f *foreignFiles) origin(p imports.Place) Origin {
	for _, d := range f.docs {
		if d.File != p.File {
			continue
		}
		for n := len(p.Key); n > 0; n-- {
			if o, ok := d.Origins[tomlfile.JoinKey(p.Key[:n]...)]; ok {
				return o
			}
		}
	}
	return Origin{File: p.File}
}

func (f *foreignFiles) note(n imports.Note) ImportNote {
	return ImportNote{Origin: f.origin(n.Place), Key: tomlfile.JoinKey(n.Key...), Handler: n.Handler, Why: n.Why, Do: n.Do}
}

// document is a translated handler as a file of berth's that has the lines of
// the files that it is from.
func (f *foreignFiles) document(h imports.Handler) *document {
	at := f.origin(h.At)
	prefix := tomlfile.Under("runtimes", h.Name)
	origins := map[string]Origin{prefix: at}
	for key, place := range h.From {
		origins[prefix+"."+key] = f.origin(place)
	}
	return &document{Document: &tomlfile.Document{File: at.File, Origins: origins}, handlers: []string{h.Name}}
}

// Watched are the directories and files whose changes can change what Load
// returns, whether they exist yet or not.
func (c *Config) Watched() []string { return c.watched }
