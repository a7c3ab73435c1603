// Package manifests reads what commands about RuntimeClasses are given: files of
// objects and of handlers, or standard input as "-".
package manifests

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
)

// maxSize is more than any file that is read: what is longer is refused by its length.
const maxSize = 65 << 20

// Reader reads files. It remembers standard input, which is there once.
type Reader struct {
	Stdin io.Reader

	stdin []byte
}

// Text is what a file has, and what to call it.
func (r *Reader) Text(file string) (name string, text []byte, err error) {
	if file == "-" {
		if r.stdin == nil {
			if r.stdin, err = io.ReadAll(io.LimitReader(r.Stdin, maxSize)); err != nil {
				return "", nil, fmt.Errorf("read standard input: %w", err)
			}
		}
		return "standard input", r.stdin, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	if text, err = io.ReadAll(io.LimitReader(f, maxSize)); err != nil {
		return "", nil, err
	}
	return file, text, nil
}

// Objects are those of files that can be read. The error has all mistakes of all files.
func (r *Reader) Objects(files []string) ([]runtimeclass.Object, error) {
	var all []runtimeclass.Object
	var problems []error
	for i, file := range files {
		if file == "-" && slices.Contains(files[:i], "-") {
			return nil, errors.New("standard input is used twice")
		}
		name, text, err := r.Text(file)
		if err == nil {
			var objects []runtimeclass.Object
			objects, err = runtimeclass.Parse(name, text)
			all = append(all, objects...)
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	return all, errors.Join(problems...)
}

// Handlers are those that --handlers gives: names with commas between them, or a file.
func (r *Reader) Handlers(given string) ([]runtimeclass.Handler, error) {
	// No handler has one of them in its name.
	if given == "-" || strings.ContainsAny(given, "/.") {
		return r.Inventory(given)
	}
	handlers, err := runtimeclass.ParseNames(given)
	if err != nil {
		return nil, fmt.Errorf("--handlers: %w", err)
	}
	return handlers, nil
}

// Inventory is a file of handlers.
func (r *Reader) Inventory(file string) ([]runtimeclass.Handler, error) {
	name, text, err := r.Text(file)
	if err != nil {
		return nil, err
	}
	return runtimeclass.ParseInventory(name, text)
}

// Kind says which objects a command is about.
type Kind func(runtimeclass.Object) bool

// IsClass and IsPod are kinds.
func IsClass(o runtimeclass.Object) bool { return o.Class != nil }

// IsPod is also of whatever makes pods.
func IsPod(o runtimeclass.Object) bool { return o.Pod != nil }

// Others are the objects that are not looked at, in words. It fails if those that are
// wanted are not among the objects of the files.
func Others(objects []runtimeclass.Object, files []string, what string, wanted Kind, known ...Kind) ([]string, error) {
	var others []string
	for _, o := range objects {
		if !wanted(o) && !slices.ContainsFunc(known, func(f Kind) bool { return f(o) }) {
			others = append(others, fmt.Sprintf("%s: %s", o.Where(""), o))
		}
	}
	if slices.ContainsFunc(objects, wanted) {
		return others, nil
	}
	const most = 3
	text := fmt.Sprintf("no %s found in %s", what, strings.Join(files, ", "))
	if n := len(others); n > most {
		text += fmt.Sprintf(", but %s and %d more", strings.Join(others[:most], ", "), n-most)
	} else if n > 0 {
		text += ", but " + strings.Join(others, ", ")
	}
	return nil, errors.New(text)
}
