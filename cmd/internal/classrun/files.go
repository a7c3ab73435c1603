package classrun

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// maxSize is more than any file that is read: what is longer is refused by its length.
const maxSize = 65 << 20

// text is what a file has, and what to call it.
func (r *runner) text(file string) (name string, text []byte, err error) {
	if file == "-" {
		if r.stdin == nil {
			if r.stdin, err = io.ReadAll(io.LimitReader(r.Stdin, maxSize)); err != nil {
				return "", nil, wrong(fmt.Errorf("read standard input: %w", err))
			}
		}
		return "standard input", r.stdin, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", nil, wrong(err)
	}
	defer f.Close()
	if text, err = io.ReadAll(io.LimitReader(f, maxSize)); err != nil {
		return "", nil, wrong(err)
	}
	return file, text, nil
}

// objects are those of files. All mistakes of all files are told at once.
func (r *runner) objects(files []string) ([]runtimeclass.Object, error) {
	var all []runtimeclass.Object
	var problems []error
	for i, file := range files {
		if file == "-" && slices.Contains(files[:i], "-") {
			return nil, wrong(errors.New("standard input is there twice"))
		}
		name, text, err := r.text(file)
		if err == nil {
			var objects []runtimeclass.Object
			objects, err = runtimeclass.Parse(name, text)
			all = append(all, objects...)
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) > 0 {
		return nil, wrong(errors.Join(problems...))
	}
	return all, nil
}

// want notes the objects that are not looked at, and fails if those that are wanted
// are not there.
func (r *runner) want(objects []runtimeclass.Object, what string, wanted func(runtimeclass.Object) bool, known ...func(runtimeclass.Object) bool) error {
	var others []string
	for _, o := range objects {
		if !wanted(o) && !slices.ContainsFunc(known, func(f func(runtimeclass.Object) bool) bool { return f(o) }) {
			others = append(others, fmt.Sprintf("%s: %s", o.Where(""), o))
		}
	}
	if !slices.ContainsFunc(objects, wanted) {
		const most = 3
		text := fmt.Sprintf("there is no %s in %s", what, strings.Join(r.Arguments, ", "))
		if n := len(others); n > most {
			text += fmt.Sprintf(", but %s and %d more", strings.Join(others[:most], ", "), n-most)
		} else if n > 0 {
			text += ", but " + strings.Join(others, ", ")
		}
		return wrong(errors.New(text))
	}
	for _, o := range others {
		r.note("%s is not looked at", o)
	}
	return nil
}

func isClass(o runtimeclass.Object) bool { return o.Class != nil }
func isPod(o runtimeclass.Object) bool   { return o.Pod != nil }

// classesOf are those of --classes, which have to be there.
func (r *runner) classesOf(files []string, flag string) ([]runtimeclass.Class, error) {
	if len(files) == 0 {
		return nil, nil
	}
	objects, err := r.objects(files)
	if err != nil {
		return nil, err
	}
	classes := runtimeclass.Classes(objects)
	if len(classes) == 0 && len(objects) > 0 {
		return nil, wrong(fmt.Errorf("--%s: there is no RuntimeClass in %s", flag, strings.Join(files, ", ")))
	}
	return classes, nil
}

// handlers are those of --handlers or of the running daemon, with what was measured.
func (r *runner) handlers() ([]runtimeclass.Handler, error) {
	handlers, err := r.named()
	if err != nil || r.Flags.Measurements == "" {
		return handlers, err
	}
	measured, err := r.inventory(r.Flags.Measurements)
	if err != nil {
		return nil, err
	}
	return runtimeclass.WithMeasurements(handlers, measured), nil
}

func (r *runner) named() ([]runtimeclass.Handler, error) {
	given := r.Flags.Handlers
	switch {
	case given == "":
		return live(r.ctx, r.Flags.AdminSocket)
	// No handler has one of them in its name.
	case given == "-" || strings.ContainsAny(given, "/."):
		return r.inventory(given)
	}
	handlers, err := runtimeclass.ParseNames(given)
	if err != nil {
		return nil, wrong(fmt.Errorf("--handlers: %w", err))
	}
	return handlers, nil
}

func (r *runner) inventory(file string) ([]runtimeclass.Handler, error) {
	name, text, err := r.text(file)
	if err != nil {
		return nil, err
	}
	handlers, err := runtimeclass.ParseInventory(name, text)
	if err != nil {
		return nil, wrong(err)
	}
	return handlers, nil
}
