package config

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// Show writes the whole configuration as TOML that Load would read to the same
// effect, each key with where its value came from in a comment.
func (c *Config) Show(w io.Writer) error {
	var b bytes.Buffer
	s := shower{cfg: c, out: &b}
	s.keys("", reflect.ValueOf(*c), false)
	v := reflect.ValueOf(*c)
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("toml"); tag != "-" && v.Field(i).Kind() == reflect.Struct {
			fmt.Fprintf(&b, "\n[%s]\n", tag)
			s.keys(tag, v.Field(i), false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Snapshotters)) {
		key := tomlfile.Under("snapshotters", name)
		fmt.Fprintf(&b, "\n[%s]\n", key)
		s.keys(key, reflect.ValueOf(c.Snapshotters[name]), false)
	}
	for _, d := range c.Runtimes {
		if err := s.handler(d); err != nil {
			return err
		}
	}
	for _, n := range c.Broken {
		fmt.Fprintf(&b, "\n# [runtimes.%s] is not in use (%s): %s\n", n.Name, n.Origin, strings.Join(strings.Fields(n.Reason), " "))
	}
	_, err := w.Write(b.Bytes())
	return err
}

type shower struct {
	cfg *Config
	out *bytes.Buffer
}

// keys writes the fields that are no tables, or only those that say something.
func (s shower) keys(prefix string, v reflect.Value, onlySet bool) {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("toml")
		field := v.Field(i)
		if tag == "" || tag == "-" || field.Kind() == reflect.Struct || isFreeTable(field) || tomlfile.IsTables(field.Type()) {
			continue
		}
		if onlySet && field.IsZero() {
			continue
		}
		fmt.Fprintf(s.out, "%s = %s # %s\n", tag, literal(field.Interface()), s.origin(tomlfile.Under(prefix, tag)))
	}
}

// origin is where a value came from: the file, the default, or the search.
func (s shower) origin(key string) string {
	o := s.cfg.Origin(key)
	set := o != Origin{}
	switch {
	case !set && key == "default_runtime":
		return "chosen"
	case !set && (key == "engine.shim_path" || key == "engine.pause_path"):
		return "default: beside the berth binary, else where runtimes are discovered"
	}
	return o.String()
}

func isFreeTable(v reflect.Value) bool {
	return v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Interface
}

func (s shower) handler(d *handler.Definition) error {
	t, err := tableOf(d)
	if err != nil {
		return err
	}
	name := tomlfile.Under("runtimes", d.Name)
	fmt.Fprintf(s.out, "\n[%s] # %s\n", name, d.Origin)
	s.keys(name, reflect.ValueOf(t), true)
	if d.Type == handler.CRI && d.RemoteHandler == "" && d.AliasOf == "" {
		fmt.Fprintf(s.out, "remote_handler = \"\" # %s\n", s.origin(tomlfile.Under(name, "remote_handler")))
	}
	if d.Candidate != nil && d.AliasOf == "" {
		fmt.Fprintf(s.out, "[%s.candidate]\n", name)
		s.keys(name+".candidate", reflect.ValueOf(t.Candidate), false)
	}
	if len(t.Options) == 0 {
		return nil
	}
	body, err := toml.Marshal(map[string]any{"runtimes": map[string]any{d.Name: map[string]any{"options": t.Options}}})
	if err != nil {
		return fmt.Errorf("show the options of handler %q: %w", d.Name, err)
	}
	_, options, _ := strings.Cut(string(body), "["+name+".options]\n")
	fmt.Fprintf(s.out, "[%s.options] # %s\n%s", name, s.origin(tomlfile.Under(name, "options")), options)
	return nil
}

// tableOf is the table that has d as its definition.
func tableOf(d *handler.Definition) (runtimeTable, error) {
	if d.AliasOf != "" {
		return runtimeTable{AliasOf: d.AliasOf}, nil
	}
	t := runtimeTable{
		RuntimePath:                  d.Path,
		Companions:                   d.Companions,
		RuntimeType:                  d.Type,
		RemoteHandler:                d.RemoteHandler,
		RuntimeRoot:                  d.Root,
		RuntimeConfigPath:            d.ConfigPath,
		Options:                      d.ShimOptions,
		PodAnnotations:               d.PodAnnotations,
		ContainerAnnotations:         d.ContainerAnnotations,
		DefaultAnnotations:           d.DefaultAnnotations,
		PrivilegedWithoutHostDevices: d.PrivilegedWithoutHostDevices,
		Snapshotter:                  d.Snapshotter,
		Platform:                     d.Platform,
		BaseRuntimeSpec:              d.BaseRuntimeSpec,
		CNIConfDir:                   d.CNIConfDir,
		ContainerCreateTimeout:       d.ContainerCreateTimeout,
		SandboxProcess:               d.SandboxProcess,
		Supervision:                  d.Supervision,
		MaxPods:                      d.Limits.MaxPods,
		MaxParallelStarts:            d.Limits.MaxParallelStarts,
		MaxQueuedStarts:              d.Limits.MaxQueuedStarts,
		StartTimeout:                 d.Limits.StartTimeout,
		RequiredDevices:              d.RequiredDevices,
		ProbeSelfCheck:               d.ProbeSelfCheck,
		SelfCheckTimeout:             cmp.Or(d.SelfCheckTimeout, DefaultSelfCheckTimeout),
		Conforms:                     d.Conforms,
	}
	if d.Type == handler.CRI {
		t.Endpoint = "unix://" + d.Endpoint
	}
	if n := d.Candidate; n != nil {
		t.Candidate = candidateTable{RuntimePath: n.Path, Percent: n.Percent}
	}
	if d.Type == handler.OCI {
		t.Options = optionsOf(d.OCI)
	}
	if d.ShimOptionsTOML != "" {
		if err := toml.Unmarshal([]byte(d.ShimOptionsTOML), &t.Options); err != nil {
			return t, fmt.Errorf("show the options of handler %q: %w", d.Name, err)
		}
	} else if d.ShimOptionsType != "" {
		t.Options = map[string]any{typeURL: d.ShimOptionsType}
	}
	return t, nil
}

func optionsOf(o handler.OCIOptions) map[string]any {
	options := map[string]any{}
	if o.NoPivotRoot {
		options["no_pivot_root"] = true
	}
	if o.NoNewKeyring {
		options["no_new_keyring"] = true
	}
	if len(o.GlobalFlags) > 0 {
		options["global_flags"] = o.GlobalFlags
	}
	return options
}

// literal writes a value as TOML on one line.
func literal(v any) string {
	switch x := v.(type) {
	case time.Duration:
		return tomlfile.Quote(shortDuration(x))
	case fs.FileMode:
		return fmt.Sprintf(`"%04o"`, uint32(x))
	case float64:
		return fmt.Sprint(x)
	}
	return tomlfile.Inline(v)
}

// shortDuration drops the zero units that time.Duration prints: 4h, not 4h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
