package containerdapi

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/deprecation"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/services"
	_ "github.com/containerd/containerd/v2/plugins/services/content" // registers its service, as do those below
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/streaming"
	"github.com/containerd/containerd/v2/plugins/services/warning"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// borrowed are services of containerd's own packages that run unchanged over berth's stores.
var borrowed = []string{
	plugins.ServicePlugin.String() + "." + services.IntrospectionService,
	plugins.GRPCPlugin.String() + ".introspection",
	plugins.GRPCPlugin.String() + ".content",
	plugins.GRPCPlugin.String() + ".leases",
	plugins.GRPCPlugin.String() + ".snapshots",
	plugins.GRPCPlugin.String() + ".streaming",
}

// containerdServices returns the initialized services of borrowed. Introspection lists their
// dependencies under the names that clients look for.
func containerdServices(ctx context.Context, d Deps, opened *streams) ([]registerer, error) {
	set := plugin.NewPluginSet()
	properties := map[string]string{
		plugins.PropertyRootDir:  filepath.Join(d.Pods.Root, "containerd-api"),
		plugins.PropertyStateDir: d.Pods.State,
	}
	registered := map[string]plugin.Registration{}
	for _, r := range registry.Graph(func(*plugin.Registration) bool { return false }) {
		registered[r.URI()] = r
	}
	all := provided(d, opened)
	for _, uri := range borrowed {
		r, ok := registered[uri]
		if !ok {
			return nil, fmt.Errorf("this build of containerd's packages has no %s", uri)
		}
		all = append(all, r)
	}
	var served []registerer
	for _, r := range append(all, named()...) {
		p := r.Init(plugin.NewContext(ctx, set, maps.Clone(properties)))
		if err := set.Add(p); err != nil {
			return nil, err
		}
		instance, err := p.Instance()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.URI(), err)
		}
		if s, ok := instance.(registerer); ok {
			served = append(served, s)
		}
	}
	return served, nil
}

// provided are berth's implementations of what the borrowed services depend on.
func provided(d Deps, opened *streams) []plugin.Registration {
	clients := d.Images.Clients()
	snapshotters := clients.Snapshotters()
	shown := map[string]snapshots.Snapshotter{}
	var all []plugin.Registration
	for _, name := range slices.Sorted(maps.Keys(snapshotters)) {
		shown[name] = &layers{Snapshotter: snapshotters[name], name: name, pods: d.Pods, images: d.Images}
		all = append(all, part(plugins.SnapshotPlugin, name, shown[name], clients.SnapshotterRoot(name)))
	}
	return append(all,
		part(plugins.ContentPlugin, "content", clients.Content(), clients.ContentRoot()),
		part(plugins.WarningPlugin, plugins.DeprecationsPlugin, noWarnings{}, ""),
		part(plugins.LeasePlugin, "manager", clients.Leases(), ""),
		part(plugins.ServicePlugin, services.ContentService, clients.Content(), ""),
		part(plugins.ServicePlugin, services.SnapshotsService, shown, ""),
		part(plugins.StreamingPlugin, "manager", opened, ""),
	)
}

// named are further plugins that clients look for, under containerd's names. They are empty: other
// code of berth does their work.
func named() []plugin.Registration {
	var all []plugin.Registration
	for _, p := range []struct {
		kind plugin.Type
		id   string
	}{
		{plugins.MetadataPlugin, "bolt"}, {plugins.GCPlugin, "scheduler"}, {plugins.EventPlugin, "exchange"},
		{plugins.TransferPlugin, "local"}, {plugins.RuntimePluginV2, "task"},
		{plugins.GRPCPlugin, "containers"}, {plugins.GRPCPlugin, "events"}, {plugins.GRPCPlugin, "healthcheck"}, {plugins.GRPCPlugin, "images"},
		{plugins.GRPCPlugin, "namespaces"}, {plugins.GRPCPlugin, "tasks"}, {plugins.GRPCPlugin, "transfer"},
		{plugins.GRPCPlugin, "version"},
	} {
		all = append(all, part(p.kind, p.id, struct{}{}, ""))
	}
	return all
}

// part wraps an existing instance as a plugin. Its root may be empty.
func part(kind plugin.Type, id string, instance any, root string) plugin.Registration {
	return plugin.Registration{Type: kind, ID: id, InitFn: func(ic *plugin.InitContext) (any, error) {
		ic.Meta.Platforms = []imagespec.Platform{platforms.DefaultSpec()}
		if root != "" {
			ic.Meta.Exports["root"] = root
		}
		return instance, nil
	}}
}

// noWarnings is the service of deprecation warnings; berth has none.
type noWarnings struct{}

func (noWarnings) Emit(context.Context, deprecation.Warning) {}

func (noWarnings) Warnings() []warning.Warning { return nil }
