package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/trust"
)

// Whoever writes into a configuration directory must not be able to stop the
// daemon by it: no file is waited for, and there is an end to all of them.
const (
	// maxFileSize bounds a configuration file, in bytes.
	maxFileSize = 1 << 20
	// maxFiles bounds the files that are read of one directory.
	maxFiles = 1000
	// maxTotalSize bounds what is read of one directory, in bytes.
	maxTotalSize = 8 << 20
)

// readAll reads the main file and the drop-ins, in the order in which later
// ones win. What cannot be read is a document that only has problems.
func readAll(o Options) []*document {
	var docs []*document
	main := o.mainFile()
	if d := read(main, newLooker(), maxFileSize); o.File != "" || !d.absent {
		d.main = true
		docs = append(docs, d)
	} else if problem := gone("file", main, o); problem != "" {
		docs = append(docs, unread(main, problem))
	}
	files, unreadable := dropInFiles(o)
	docs = append(docs, unreadable...)
	return append(docs, readEach(files, maxTotalSize, o.Overlay)...)
}

// readEach reads files of directories, until there were so many bytes. A file
// that went away since it was listed is none. What overlay has of one counts.
func readEach(files []string, left int64, overlay map[string][]byte) []*document {
	var docs []*document
	l := newLooker()
	for _, f := range files {
		var d *document
		if text, laid := overlay[f]; laid {
			d = parsed(f, text)
		} else {
			d = orDangling(read(f, l, left))
		}
		if d != nil {
			left -= d.size
			docs = append(docs, d)
		}
	}
	return docs
}

// orDangling is nil for a file that is not there, unless a link says that it
// should be.
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

// dropInFiles lists *.toml of the directories in lexical order of their names.
// Of two files of one name that of the administrator counts. Names that
// begin with a dot are editors' and package managers' leftovers.
func dropInFiles(o Options) (files []string, unreadable []*document) {
	byName := map[string]string{}
	for _, dir := range []string{o.vendorDir(), o.dropInDir()} {
		names, problem := list(dir, isDropIn)
		if problem == "" && !IsDir(dir) {
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

// list returns the names of a directory's entries that are wanted, in lexical
// order. A directory that does not exist has none.
func list(dir string, wanted func(fs.DirEntry) bool) (names []string, problem string) {
	type listing struct {
		entries []fs.DirEntry
		refused *trust.Refused
		err     error
	}
	found, late := look("list", dir, func() listing {
		entries, err := os.ReadDir(dir)
		refused, _ := errors.AsType[*trust.Refused](trust.CheckDir(dir, trust.Configuration))
		return listing{entries, refused, err}
	})
	if late {
		return nil, "cannot be listed: " + hangs
	}
	entries, err := found.entries, found.err
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Sprintf("cannot be listed: %v", pathless(err))
	}
	for _, e := range entries {
		if wanted(e) {
			names = append(names, e.Name())
		}
	}
	if len(names) > maxFiles {
		return names[:maxFiles], fmt.Sprintf("has %d configuration files; only the first %d are read, up to %s; remove those that are not needed",
			len(names), maxFiles, names[maxFiles-1])
	}
	// Each file is judged by itself, too. A sticky directory is fine for those that
	// are there, and not for those that anybody may add.
	if found.refused != nil && len(names) > 0 {
		problem = found.refused.Error()
	}
	return names, problem
}

func unread(file, message string) *document {
	return &document{Document: &tomlfile.Document{File: file, Problems: Problems{{Origin: Origin{File: file}, Message: message}}}}
}

// read parses one file of at most most bytes. /dev/null is an empty one, so that
// a link to it takes a vendor's drop-in away.
func read(file string, l *looker, most int64) *document {
	data, d := l.content(file, most)
	if d != nil {
		return d
	}
	return parsed(file, data)
}

func parsed(file string, data []byte) *document {
	d := parse(file, data)
	d.size, d.text = int64(len(data)), data
	return d
}

// fetched is what is in a file, or why that is unknown.
type fetched struct {
	data    []byte
	mistake string
	absent  bool
}

func (l *looker) content(file string, most int64) ([]byte, *document) {
	got, late := ask(l, "content", file, func() fetched { return fetch(file) })
	switch {
	case late:
		got.mistake = "cannot be read: " + hangs
	case int64(len(got.data)) > most:
		got.mistake = fmt.Sprintf("is skipped: the files of its directory have more than %d bytes in total", maxTotalSize)
	}
	if got.mistake == "" {
		return got.data, nil
	}
	d := unread(file, got.mistake)
	d.absent = got.absent
	return nil, d
}

// fetch waits for as long as the file's file system does.
func fetch(file string) fetched {
	// To open a device can do things; to look at it does nothing.
	w := trust.Find(file)
	defer w.Close()
	info, err := w.Stat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fetched{mistake: "the file does not exist", absent: true}
	case err != nil:
		return fetched{mistake: fmt.Sprintf("cannot be read: %v", pathless(err))}
	case isDevNull(info):
		return fetched{}
	}
	if m := sizeMistake(info); m != "" {
		return fetched{mistake: m}
	}
	if m := openToOthers(w, trust.Configuration); m != "" {
		return fetched{mistake: m}
	}
	for range readAttempts {
		data, whole, m := readOnce(w)
		switch {
		case m != "":
			return fetched{mistake: m}
		case whole:
			return fetched{data: data}
		}
	}
	return fetched{mistake: "changed while it was read; write it under another name and rename it"}
}

// readPatience is how long a read may wait for a file to say something.
const readPatience = time.Second

// readAttempts is how often a file is read that changes meanwhile.
const readAttempts = 3

// readOnce reads a file. It is not whole if it changed meanwhile.
func readOnce(w *trust.Way) (data []byte, whole bool, mistake string) {
	f, err := w.Open()
	if err != nil {
		return nil, false, fmt.Sprintf("cannot be read: %v", pathless(err))
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, false, fmt.Sprintf("cannot be read: %v", pathless(err))
	}
	if m := sizeMistake(before); m != "" {
		return nil, false, m
	}
	// Some files of /proc are regular by name and waited for. Those that cannot be
	// have no deadline, which is no error.
	_ = f.SetReadDeadline(time.Now().Add(readPatience))
	data, err = io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, false, fmt.Sprintf("cannot be read: %v", pathless(err))
	}
	after, err := f.Stat()
	if err != nil {
		return nil, false, fmt.Sprintf("cannot be read: %v", pathless(err))
	}
	whole = before.ModTime().Equal(after.ModTime()) && after.Size() == int64(len(data))
	return data, whole, ""
}

func sizeMistake(info fs.FileInfo) string {
	switch {
	case !info.Mode().IsRegular():
		return "must be a file, not " + kindOf(info.Mode())
	case info.Size() > maxFileSize:
		return fmt.Sprintf("has %d bytes; the limit for a configuration file is %d", info.Size(), maxFileSize)
	}
	return ""
}

func isDevNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}
