package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	runc "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/shims/standin"
)

const name = "io.containerd.kata.v2"

// manager implements the actions of the binary.
type manager struct{}

func (manager) Name() string { return name }

func (manager) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) {
	return nil, errors.New("not known")
}

// Start starts the server, one for each pod. Its answer is only the address, as with every shim
// that was built on containerd 1.x: pkg/containerd-shim-v2/service.go, StartShim.
func (manager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	var path string
	for _, e := range params.GetExtensions() {
		var err error
		if path, err = configPath(e.GetValue()); err != nil {
			return nil, err
		}
	}
	settings, err := standin.Settings[shims.Kata](path)
	if err != nil {
		return nil, err
	}
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	address, err := shim.CreateSocketAddress(ctx, params.GetSocketDir(), params.GetContainerdGrpcAddress(), params.GetInstanceID(), false)
	if err != nil {
		return nil, err
	}
	if settings.AbstractSocket {
		// containerd 1.3, runtime/v2/shim/util_unix.go, SocketAddress.
		sum := sha256.Sum256([]byte(filepath.Join(ns, params.GetInstanceID())))
		address = fmt.Sprintf("/containerd-shim/%x.sock", sum)
	}
	socket, err := shim.NewSocket(address)
	if err != nil {
		return nil, err
	}
	file, err := socket.File()
	if err != nil {
		return nil, err
	}
	if err := standin.Serve(ns, params.GetInstanceID(), params.GetContainerdGrpcAddress(), file, settingsVariable+"="+path); err != nil {
		return nil, err
	}
	if settings.AnswersElsewhere {
		address = "/no/such/socket"
	}
	return nil, standin.Answer(address)
}

// Stop is the delete action. It stops the machine with the last recorded container:
// virtcontainers/api.go, CleanupContainer.
func (manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	bundle, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, err
	}
	sandbox, err := sandboxOf(bundle, id)
	if err != nil {
		return shim.StopStatus{}, err
	}
	kept, err := loadState(sandbox)
	if err != nil {
		return shim.StopStatus{}, err
	}
	if err := hold(ctx, kept.Settings.HoldDelete); err != nil {
		return shim.StopStatus{}, err
	}
	status, err := runc.NewShimManager(name).Stop(ctx, id)
	if err != nil {
		return status, err
	}
	delete(kept.Containers, id)
	if len(kept.Containers) > 0 {
		return status, kept.save()
	}
	return status, kept.end()
}

// hold waits while a file exists.
func hold(ctx context.Context, path string) error {
	for {
		if path == "" {
			return nil
		}
		if _, err := os.Stat(path); err != nil {
			return nil //nolint:nilerr // it is gone
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// settingsVariable has the path of Kata's configuration if no options have it:
// pkg/containerd-shim-v2/create.go, loadRuntimeConfig.
const settingsVariable = "KATA_CONF_FILE"

// decode reads options as typeurl before version 2, with which Kata was built until 3.2: a URL is
// only the name of a type (github.com/containerd/typeurl v1.0.2, types.go, getTypeByUrl).
func decode(a *anypb.Any) (proto.Message, error) {
	var m proto.Message
	switch a.GetTypeUrl() {
	case "runtimeoptions.v1.Options":
		m = &runtimeoptions.Options{}
	case "containerd.runc.v1.Options":
		m = &runcoptions.Options{}
	default:
		return nil, fmt.Errorf("type with url %s: not found", a.GetTypeUrl())
	}
	return m, proto.Unmarshal(a.GetValue(), m)
}

// configPath returns the path in options; options of runc have none.
func configPath(a *anypb.Any) (string, error) {
	if a == nil {
		return "", nil
	}
	m, err := decode(a)
	if err != nil {
		return "", err
	}
	if o, ok := m.(*runtimeoptions.Options); ok {
		return o.GetConfigPath(), nil
	}
	return "", nil
}
