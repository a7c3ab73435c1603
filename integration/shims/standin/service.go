// Package standin has what the imitations of shims share: it serves their task service, and reads
// their settings and specs.
package standin

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// SandboxAnnotation has the id of a container's pod.
const SandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// Register has the library serve a task service.
func Register[Service any](make func(context.Context, shim.Publisher, shutdown.Service) (Service, error)) {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			down, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			return make(ic.Context, publisher.(shim.Publisher), down.(shutdown.Service))
		},
	})
}

// Method makes a method of a ttrpc service from a call.
func Method[Request, Response any](call func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		r := new(Request)
		if err := unmarshal(r); err != nil {
			return nil, err
		}
		return call(ctx, r)
	}
}

// Settings reads the settings of a shim from a JSON file.
func Settings[S any](path string) (s S, err error) {
	if err := readJSON(path, &s); err != nil {
		return s, fmt.Errorf("configuration of the shim: %w", err)
	}
	return s, nil
}

// ReadSpec reads the spec of a bundle.
func ReadSpec(bundle string) (*specs.Spec, error) {
	spec := &specs.Spec{}
	if err := readJSON(filepath.Join(bundle, "config.json"), spec); err != nil {
		return nil, err
	}
	return spec, nil
}

func readJSON(path string, to any) error {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	return err
}

// Option is the value of a flag of the library.
func Option(name string) string { return flag.Lookup(name).Value.String() }

// Serve starts the server of a pod, with its listening socket and an additional environment
// variable.
func Serve(ns, id, daemon string, socket *os.File, environment string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	server := exec.Command(self, "-namespace", ns, "-id", id, "-address", daemon, "-publish-binary", Option("publish-binary"))
	server.Env = append(os.Environ(), environment)
	server.ExtraFiles = []*os.File{socket}
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return server.Start()
}

// Answer prints only the address and ends the start action, before the library prints its own
// answer.
func Answer(address string) error {
	if _, err := os.Stdout.WriteString(address); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

// ByBinary publishes events as shims that were built on containerd before 1.3: they run the program
// that -publish-binary names (containerd 1.2, runtime/v2/shim/shim.go, remoteEventsPublisher).
type ByBinary struct{ shim.Publisher }

// Publish runs the program.
func (ByBinary) Publish(ctx context.Context, topic string, event events.Event) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	encoded, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		return err
	}
	data, err := proto.Marshal(encoded)
	if err != nil {
		return err
	}
	command := exec.Command(Option("publish-binary"), "--address", Option("address"), "publish", "--topic", topic, "--namespace", ns)
	command.Stdin = bytes.NewReader(data)
	exits, err := reaper.Default.Start(command)
	if err != nil {
		return err
	}
	status, err := reaper.Default.Wait(command, exits)
	if err == nil && status != 0 {
		err = fmt.Errorf("publish %s: status %d", topic, status)
	}
	return err
}
