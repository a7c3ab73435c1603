package config

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

const shimPrefix = "containerd-shim-"

// runtimeTable is a handler's table as written in a file.
type runtimeTable struct {
	handler.Definition
	// Options is the table of options for the runtime or its shim.
	Options map[string]any `toml:"options"`
}

func defaultTable() runtimeTable {
	return runtimeTable{Definition: handler.Definition{
		ContainerCreateTimeout: 4 * time.Minute, // booting a VM takes minutes
		SelfCheckTimeout:       2 * time.Minute, // VMs without hardware virtualization boot slowly
		SandboxProcess:         handler.SandboxProcessAuto,
	}}
}

// handlerType returns the type in the table, else the one that the endpoint or the binary implies.
func (t *runtimeTable) handlerType() handler.Type {
	switch {
	case t.Type != "":
		return t.Type
	case t.Endpoint != "":
		return handler.CRI
	case strings.HasPrefix(filepath.Base(t.Path), shimPrefix):
		return handler.Shim
	}
	return handler.OCI
}

// devices returns the table's required devices, with a default for Kata: it boots VMs, and is often
// installed on machines that cannot run them; only its remote hypervisor works without KVM.
func (t *runtimeTable) devices() []string {
	if t.RequiredDevices == nil && strings.HasPrefix(filepath.Base(t.Path), shimPrefix+"kata-") &&
		!strings.Contains(filepath.Base(t.ConfigPath), "remote") {
		return []string{"/dev/kvm"}
	}
	return t.RequiredDevices
}

func (t *runtimeTable) isRuncShim() bool {
	return t.handlerType() == handler.Shim && handler.IsRuncShim(t.Path)
}

// isRunsc reports whether an OCI runtime is gVisor's, which can have a configuration file.
func (t *runtimeTable) isRunsc() bool {
	base := filepath.Base(t.Path)
	return base == "runsc" || strings.HasPrefix(base, "runsc-")
}

// definition returns the table's Definition, without options. Defaults of the engine's section are
// filled in, so that a pod keeps them too.
func (t *runtimeTable) definition(name string, e Engine) *handler.Definition {
	d := t.Definition
	d.Name, d.Type = name, t.handlerType()
	d.Snapshotter = cmp.Or(d.Snapshotter, e.Snapshotter)
	d.RequiredDevices = t.devices()
	if d.Supervision = ""; d.Type == handler.OCI {
		d.Supervision = cmp.Or(t.Supervision, e.Supervision)
	}
	return &d
}

// runtime decodes and checks one handler's table. The Definition is complete only without problems.
func (d *decoder) runtime(name string, v any, e Engine) *handler.Definition {
	key := tomlfile.Under("runtimes", name)
	values, ok := v.(map[string]any)
	if !ok {
		message := "must be a handler's table, such as [runtimes.runc], not " + tomlfile.TypeName(v)
		if where, _ := homeOf("runtimes", name); where != "" {
			message += "; " + name + " belongs " + where
		}
		d.Report(key, message, "")
		return nil
	}
	if err := handler.ValidName(name); err != nil {
		d.Report(key, strings.TrimSuffix(err.Error(), ": "+errdefs.ErrInvalidArgument.Error()), validNameLike(name))
	}
	t := defaultTable()
	d.Table(sectionHandler, key, values, reflect.ValueOf(&t).Elem())
	if _, alias := values["alias_of"]; alias {
		return d.alias(name, key, values, &t)
	}
	if _, leads := values["endpoint"]; t.handlerType() == handler.CRI || leads && t.Type == "" {
		return d.remote(name, key, values, &t)
	}
	def := t.definition(name, e)
	def.Origin = d.Doc.Origins[key].String()
	d.options(key, &t, def, e)
	c := check{decoder: d, handler: name, key: key, set: values}
	c.noEndpoint()
	c.candidate(&t)
	c.runtimePath(&t)
	c.words(&t)
	c.paths(&t)
	c.annotations(&t)
	c.limits(&t)
	c.companions(&t)
	c.devices(&t)
	c.conforms(&t)
	c.compatible(&t)
	return def
}

func validNameLike(name string) string {
	like := strings.Trim(strings.NewReplacer("_", "-", ".", "-", " ", "-").Replace(strings.ToLower(name)), "-")
	if handler.ValidName(like) != nil || like == name {
		return ""
	}
	return like
}

// alias checks the table of an alias. The returned Definition is a placeholder until
// resolveAliases.
func (d *decoder) alias(name, key string, values map[string]any, t *runtimeTable) *handler.Definition {
	at := tomlfile.Under(key, "alias_of")
	for _, other := range slices.Sorted(maps.Keys(values)) {
		if other != "alias_of" {
			d.Report(tomlfile.Under(key, other), "cannot be combined with alias_of, which takes all settings from the other handler; remove one of the two", "")
		}
	}
	switch {
	case !isString(values["alias_of"]):
		// Its wrong type is reported already.
	case t.AliasOf == "":
		d.Report(at, "must name the handler that "+name+" is an alias of", "")
	case t.AliasOf == name:
		d.Report(at, "must be another handler, not "+name+" itself", "")
	default:
		return &handler.Definition{Name: name, AliasOf: t.AliasOf, Origin: d.Doc.Origins[key].String()}
	}
	return nil
}

// remoteKeys are the keys that apply to a handler of another CRI daemon. That daemon's
// configuration selects the runtime.
var remoteKeys = []string{
	"runtime_type", "endpoint", "remote_handler",
	"max_pods", "max_parallel_starts", "max_queued_starts", "start_timeout",
}

// remote checks the table of a handler in another CRI daemon.
func (d *decoder) remote(name, key string, values map[string]any, t *runtimeTable) *handler.Definition {
	c := check{decoder: d, handler: name, key: key, set: values}
	table := tomlfile.FieldsOf(reflect.TypeFor[runtimeTable]())
	for _, other := range slices.Sorted(maps.Keys(values)) {
		if _, known := table.Index[other]; known && !slices.Contains(remoteKeys, other) {
			c.wrong(other, "does not apply to a handler of another CRI daemon, which uses its own configuration; remove it, or endpoint", "")
		}
	}
	c.words(t)
	c.limits(t)
	def := &handler.Definition{
		Name: name, Type: handler.CRI, Endpoint: c.endpoint(t), RemoteHandler: name, Origin: d.Doc.Origins[key].String(),
		Limits: t.Limits,
	}
	// The other daemon's default handler might be another runtime than requested; only a key set to
	// "" selects it.
	if c.has("remote_handler") {
		def.RemoteHandler = t.RemoteHandler
	}
	return def
}

func (c check) endpoint(t *runtimeTable) string {
	path, isUnix := strings.CutPrefix(t.Endpoint, "unix://")
	switch {
	case !c.has("endpoint"):
		c.Report(c.key, "endpoint is missing; set it to the socket of the other CRI daemon, such as \"unix:///run/containerd/containerd.sock\"", "")
	case !isString(c.set["endpoint"]):
		// Its wrong type is reported already.
	case !isUnix && filepath.IsAbs(t.Endpoint):
		c.wrong("endpoint", "must begin with unix://", "unix://"+t.Endpoint)
	case !isUnix || !filepath.IsAbs(path):
		c.wrong("endpoint", fmt.Sprintf("%q must be unix:// and the absolute path of a socket, such as \"unix:///run/containerd/containerd.sock\"", t.Endpoint), "")
	case len(path) > maxSocketPath:
		c.wrong("endpoint", fmt.Sprintf("the path has %d bytes; the limit for unix socket paths is %d", len(path), maxSocketPath), "")
	default:
		return filepath.Clean(path)
	}
	return ""
}

// noEndpoint reports keys for another CRI daemon in the table of a runtime.
func (c check) noEndpoint() {
	for _, name := range []string{"endpoint", "remote_handler"} {
		if c.has(name) {
			c.wrong(name, "is for handlers of another CRI daemon; remove it, or set runtime_type to \"cri\" and remove runtime_path", "")
		}
	}
}
