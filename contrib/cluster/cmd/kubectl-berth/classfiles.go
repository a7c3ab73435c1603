package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/manifests"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
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

// handlers are those of --handlers, or else those that the nodes of a cluster report, with what
// was measured.
func (w *classWork) handlers(of *cluster.State) ([]runtimeclass.Handler, error) {
	var handlers []runtimeclass.Handler
	var err error
	if of != nil {
		if handlers = cluster.Handlers(of); len(handlers) == 0 {
			return nil, errors.New("no node of the cluster reports handlers, which needs Kubernetes 1.30 and a CRI daemon that supports it; use --handlers")
		}
	} else if handlers, err = w.files.Handlers(w.flags.handlers); err != nil {
		return nil, wrong(err)
	}
	if w.flags.measurements == "" {
		return handlers, nil
	}
	measured, err := w.inventory(w.flags.measurements)
	if err != nil {
		return nil, err
	}
	return runtimeclass.WithMeasurements(handlers, measured), nil
}

func (w *classWork) inventory(file string) ([]runtimeclass.Handler, error) {
	handlers, err := w.files.Inventory(file)
	if err != nil {
		return nil, wrong(err)
	}
	return handlers, nil
}
