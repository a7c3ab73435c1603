package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
)

// text reads a file, or standard input for "-", and returns its display name.
func (p *program) text(file string) (name string, text []byte, err error) {
	if file == "-" {
		text, err = io.ReadAll(p.In)
		return "standard input", text, err
	}
	text, err = os.ReadFile(file)
	return file, text, err
}

// objects returns the readable objects of files. The error lists the mistakes of all files.
func (p *program) objects(files []string) ([]runtimeclass.Object, error) {
	var all []runtimeclass.Object
	var problems []error
	for _, file := range files {
		name, text, err := p.text(file)
		if err == nil {
			var objects []runtimeclass.Object
			objects, err = runtimeclass.Parse(name, text)
			all = append(all, objects...)
		}
		problems = append(problems, err)
	}
	return all, commandline.Wrong(errors.Join(problems...))
}

// want prints which objects are not wanted, and fails if none is wanted.
func (p *program) want(objects []runtimeclass.Object, files []string, what string, wanted func(runtimeclass.Object) bool) error {
	found := false
	for _, o := range objects {
		if wanted(o) {
			found = true
		} else {
			p.note("%s: %s is skipped", o.Where(""), o)
		}
	}
	if !found {
		return commandline.Wrong(fmt.Errorf("no %s found in %s", what, strings.Join(files, ", ")))
	}
	return nil
}

func isClass(o runtimeclass.Object) bool { return o.Class != nil }

func isPod(o runtimeclass.Object) bool { return o.Pod != nil }

// handlers parses --handlers: names separated by commas, or a file.
func (p *program) handlers(given string) ([]runtimeclass.Handler, error) {
	if given == "-" || strings.ContainsAny(given, "/.") { // not allowed in a handler's name
		return p.inventory(given)
	}
	all, err := runtimeclass.ParseNames(given)
	if err != nil {
		return nil, commandline.Wrong(fmt.Errorf("--handlers: %w", err))
	}
	return all, nil
}

// inventory reads a file of handlers.
func (p *program) inventory(file string) ([]runtimeclass.Handler, error) {
	name, text, err := p.text(file)
	if err != nil {
		return nil, commandline.Wrong(err)
	}
	all, err := runtimeclass.ParseInventory(name, text)
	return all, commandline.Wrong(err)
}

// measured adds the measurements of a file to handlers. Without a file it changes nothing.
func (p *program) measured(handlers []runtimeclass.Handler, file string) ([]runtimeclass.Handler, error) {
	if file == "" {
		return handlers, nil
	}
	all, err := p.inventory(file)
	return runtimeclass.WithMeasurements(handlers, all), err
}

// classes reads classes from files. Files without any class are an error.
func (p *program) classes(files []string) ([]runtimeclass.Class, error) {
	objects, err := p.objects(files)
	all := runtimeclass.Classes(objects)
	if err == nil && len(all) == 0 && len(files) > 0 {
		err = commandline.Wrong(fmt.Errorf("--classes: no RuntimeClass found in %s", strings.Join(files, ", ")))
	}
	return all, err
}
