package main

import (
	"fmt"
	"strings"

	"github.com/berth-cri/berth/cmd/internal/manifests"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// objects are those of files. All mistakes of all files are told at once.
func (w *classWork) objects(files []string) ([]runtimeclass.Object, error) {
	all, err := w.files.Objects(files)
	if err != nil {
		return nil, wrong(err)
	}
	return all, nil
}

// want notes the objects that are not looked at, and fails if those that are wanted
// are not there.
func (w *classWork) want(objects []runtimeclass.Object, what string, wanted manifests.Kind, known ...manifests.Kind) error {
	others, err := manifests.Others(objects, w.args, what, wanted, known...)
	if err != nil {
		return wrong(err)
	}
	for _, o := range others {
		w.note("%s is skipped", o)
	}
	return nil
}

// classesOf are those of --classes, which have to be there.
func (w *classWork) classesOf(files []string, flag string) ([]runtimeclass.Class, error) {
	if len(files) == 0 {
		return nil, nil
	}
	objects, err := w.objects(files)
	if err != nil {
		return nil, err
	}
	classes := runtimeclass.Classes(objects)
	if len(classes) == 0 && len(objects) > 0 {
		return nil, wrong(fmt.Errorf("--%s: no RuntimeClass found in %s", flag, strings.Join(files, ", ")))
	}
	return classes, nil
}

// handlers are those of --handlers, or else of the cluster, with what was measured.
func (w *classWork) handlers() ([]runtimeclass.Handler, error) {
	f := &applyFlags{handlers: w.flags.handlers, measurements: w.flags.measurements, fromNodes: w.flags.handlers == ""}
	var s *server
	if f.fromNodes {
		var err error
		if s, err = w.connect(); err != nil {
			return nil, err
		}
	}
	all, _, err := (&applyCommand{w.program}).handlersToApply(w.ctx, s, f)
	return all, err
}

func (w *classWork) inventory(file string) ([]runtimeclass.Handler, error) {
	handlers, err := w.files.Inventory(file)
	if err != nil {
		return nil, wrong(err)
	}
	return handlers, nil
}
