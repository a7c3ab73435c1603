package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"syscall"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	runc "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
)

const name = "io.containerd.wasmtime.v1"

// sandboxAnnotation names the pod of a container.
const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// manager answers the actions of the binary.
type manager struct{}

func (manager) Name() string { return name }

func (manager) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) {
	return nil, errors.New("not known")
}

// Start starts the server, one for each pod, and answers with the bare address:
// containerd-shimkit/src/sandbox/shim/shim.rs, start_shim. The server is given the
// daemon's address as the start action is.
func (manager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	path := ""
	for _, e := range params.GetExtensions() {
		var err error
		if path, err = configPath(e.GetValue()); err != nil {
			return nil, err
		}
	}
	if _, err := readSettings(path); err != nil {
		return nil, err
	}
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := readSpec(".")
	if err != nil {
		return nil, err
	}
	group := cmp.Or(spec.Annotations[sandboxAnnotation], params.GetInstanceID())
	daemon := flag.Lookup("address").Value.String()
	address, err := shim.CreateSocketAddress(ctx, params.GetSocketDir(), daemon, group, false)
	if err != nil {
		return nil, err
	}
	socket, err := shim.NewSocket(address)
	if shim.SocketEaddrinuse(err) && shim.CanConnect(address) {
		return nil, answer(address) // the pod's is there
	}
	if err != nil {
		return nil, err
	}
	file, err := socket.File()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	server := exec.Command(self, "-namespace", ns, "-id", params.GetInstanceID(), "-address", daemon,
		"-publish-binary", flag.Lookup("publish-binary").Value.String())
	server.Env = append(os.Environ(), settingsVariable+"="+path)
	server.ExtraFiles = []*os.File{file}
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		return nil, err
	}
	return nil, answer(address)
}

// answer ends the start action.
func answer(address string) error {
	if _, err := os.Stdout.WriteString(address); err != nil {
		return err
	}
	os.Exit(0) // the library would write an answer of its own
	return nil
}

// Stop is the delete action.
func (manager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	return runc.NewShimManager(name).Stop(ctx, id)
}
