package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/contrib/cluster/pkg/installer"
)

// runtimeForm is what --runtime is to be.
const runtimeForm = `write {handler: crun, kind: crun, version: "1.24", source: /usr/bin/crun}`

// parseRuntime reads a value of --runtime. The fields are looked at one by one, because an error
// of the decoder would be about JSON, and a version without quotes would lose its zeros.
func parseRuntime(text string) (r installer.Runtime, err error) {
	fields := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &fields); err != nil {
		return r, errors.New(runtimeForm)
	}
	into := map[string]*string{"handler": &r.Handler, "kind": &r.Kind, "version": &r.Version, "source": &r.Source, "options": &r.Options}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		field, known := into[key]
		if !known {
			return installer.Runtime{}, fmt.Errorf("unknown key %q; %s", key, runtimeForm)
		}
		value, isText := fields[key].(string)
		if !isText {
			return installer.Runtime{}, fmt.Errorf("%s is not text; put it in quotes: %s: \"…\"", key, key)
		}
		*field = value
	}
	return r, nil
}
