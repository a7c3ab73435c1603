package installer

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// lead has every handler lead to the other daemon, so that the engine gets no more pods. If
// berth is wanted again, the next installation does those steps anew.
func (i *Installer) lead(ctx context.Context, j *journal) error {
	e := j.entry(configStep)
	if e == nil {
		return nil
	}
	var config savedConfiguration
	if err := json.Unmarshal(e.Saved, &config); err != nil {
		return err
	}
	var originals []nodefs.Original
	base := configTexts(config.Beside, "")
	for n := range j.Steps {
		r := &j.Steps[n]
		if !strings.HasPrefix(r.Name, runtimeStep) || r.State == undoing {
			continue
		}
		var saved savedRuntime
		if err := json.Unmarshal(r.Saved, &saved); err != nil {
			return err
		}
		for n := range saved.Files {
			o := &saved.Files[n]
			o.Writes(base[o.Path])
			known := slices.ContainsFunc(config.Files, func(of nodefs.Original) bool { return of.Path == o.Path })
			if _, led := base[o.Path]; led && !known {
				config.Files = append(config.Files, *o) // the runtime has it as it was before
			}
		}
		originals = append(originals, saved.Files...)
		text, err := json.Marshal(saved)
		if err != nil {
			return err
		}
		r.State, r.Saved = doing, text
	}
	files, err := (nodefs.Set{Content: base}).Prepare(i.root(), config.Files)
	if err != nil {
		return err
	}
	config.Files = files
	if e.Saved, err = json.Marshal(config); err != nil {
		return err
	}
	e.State = doing
	if err := j.write(); err != nil {
		return err
	}
	if err := i.root().RestoreAll(originals); err != nil {
		return err
	}
	if err := (nodefs.Set{Content: base}).Do(i.root(), config.Files); err != nil {
		return err
	}
	if d := i.daemon(); d.active(ctx) {
		return d.reload(ctx)
	}
	return nil // it reads the files when it starts
}
