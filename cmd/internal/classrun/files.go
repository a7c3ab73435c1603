package classrun

import (
	"fmt"
	"strings"

	"github.com/berth-cri/berth/cmd/internal/manifests"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// objects are those of files. All mistakes of all files are told at once.
func (r *runner) objects(files []string) ([]runtimeclass.Object, error) {
	all, err := r.files.Objects(files)
	if err != nil {
		return nil, wrong(err)
	}
	return all, nil
}

// want notes the objects that are not looked at, and fails if those that are wanted
// are not there.
func (r *runner) want(objects []runtimeclass.Object, what string, wanted manifests.Kind, known ...manifests.Kind) error {
	others, err := manifests.Others(objects, r.Arguments, what, wanted, known...)
	if err != nil {
		return wrong(err)
	}
	for _, o := range others {
		r.note("%s is not looked at", o)
	}
	return nil
}

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
	if r.Flags.Handlers == "" {
		return live(r.ctx, r.Flags.AdminSocket)
	}
	handlers, err := r.files.Handlers(r.Flags.Handlers)
	if err != nil {
		return nil, wrong(err)
	}
	return handlers, nil
}

func (r *runner) inventory(file string) ([]runtimeclass.Handler, error) {
	handlers, err := r.files.Inventory(file)
	if err != nil {
		return nil, wrong(err)
	}
	return handlers, nil
}
