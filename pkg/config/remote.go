package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// remoteKeys are those of handlers whose pods live in another CRI daemon. Which
// runtime runs them, and how, is that daemon's configuration.
var remoteKeys = []string{
	"runtime_type", "endpoint", "remote_handler",
	"max_pods", "max_parallel_starts", "max_queued_starts", "start_timeout",
}

// remote checks a table that leads to another CRI daemon.
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
	// To fall back to the daemon's default would be to run a pod under another
	// runtime than it asked for; who wants that says so.
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

// noEndpoint reports the keys of another CRI daemon in the table of a runtime.
func (c check) noEndpoint() {
	for _, name := range []string{"endpoint", "remote_handler"} {
		if c.has(name) {
			c.wrong(name, "is for handlers of another CRI daemon; remove it, or set runtime_type to \"cri\" and remove runtime_path", "")
		}
	}
}
