package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	runc "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/typeurl/v2"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/shims/standin"
)

const name = "io.containerd.wasmtime.v1"

// manager implements the actions of the binary.
type manager struct{}

func (manager) Name() string { return name }

func (manager) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) {
	return nil, errors.New("not known")
}

// Start starts the server, one for each pod, and answers with only the address:
// containerd-shimkit/src/sandbox/shim/shim.rs, start_shim. The server gets the daemon's address
// from the start action.
func (manager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	path := ""
	for _, e := range params.GetExtensions() {
		var err error
		if path, err = configPath(e.GetValue()); err != nil {
			return nil, err
		}
	}
	if _, err := standin.Settings[shims.Wasm](path); err != nil {
		return nil, err
	}
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := standin.ReadSpec(".")
	if err != nil {
		return nil, err
	}
	group := cmp.Or(spec.Annotations[standin.SandboxAnnotation], params.GetInstanceID())
	daemon := standin.Option("address")
	address, err := shim.CreateSocketAddress(ctx, params.GetSocketDir(), daemon, group, false)
	if err != nil {
		return nil, err
	}
	socket, err := shim.NewSocket(address)
	if shim.SocketEaddrinuse(err) && shim.CanConnect(address) {
		return nil, standin.Answer(address) // the pod has a server already
	}
	if err != nil {
		return nil, err
	}
	file, err := socket.File()
	if err != nil {
		return nil, err
	}
	if err := standin.Serve(ns, params.GetInstanceID(), daemon, file, settingsVariable+"="+path); err != nil {
		return nil, err
	}
	return nil, standin.Answer(address)
}

// Stop is the delete action.
func (manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	return runc.NewShimManager(name).Stop(ctx, id)
}

// settingsVariable has the path of the settings, from the start action for the server.
const settingsVariable = "BERTH_TEST_WASM_SHIM_CONFIG"

// configPath returns the path in options, which have this type for runwasi's shims
// (containerd-shimkit/src/sandbox/shim/local.rs, get_from_options).
func configPath(a typeurl.Any) (string, error) {
	v, err := typeurl.UnmarshalAny(a)
	if err != nil {
		return "", err
	}
	o, ok := v.(*runtimeoptions.Options)
	if !ok {
		return "", fmt.Errorf("invalid options type %s", a.GetTypeUrl())
	}
	return o.GetConfigPath(), nil
}
