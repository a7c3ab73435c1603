package classrun

import (
	"context"
	"errors"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/cmd/internal/adminsocket"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/runtimeclass"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// callTimeout bounds calls that should take no time at all.
const callTimeout = 30 * time.Second

// live are the handlers of the running daemon.
func live(ctx context.Context, socket string) ([]runtimeclass.Handler, error) {
	daemon, err := client.New(adminsocket.Path(socket))
	if err != nil {
		return nil, err
	}
	defer daemon.Close()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return nil, daemon.Explain(err)
	}
	var all []runtimeclass.Handler
	for _, h := range list.GetHandlers() {
		one, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: h.GetName()})
		if status.Code(err) == codes.NotFound {
			continue // it went meanwhile
		}
		if err != nil {
			return nil, daemon.Explain(err)
		}
		all = append(all, handlerOf(one))
	}
	if len(all) == 0 {
		return nil, errors.New("the running daemon has no handlers; see \"berth status\"")
	}
	return all, nil
}

func handlerOf(h *adminv1.GetHandlerResponse) runtimeclass.Handler {
	of := h.GetHandler()
	return runtimeclass.Handler{
		Name: of.GetName(), Default: of.GetIsDefault(), Reason: of.GetReason(),
		State: strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(of.GetState().String(), "STATE_")), "_", "-"),
		Table: tableOf(h.GetFeatures(), mayUseHostNetwork(h.GetSettings())),
	}
}

const ownKernel = "own-kernel"

// tableOf is what a runtime says of itself, and what follows from whose kernel its
// containers run on. It says nothing of a runtime that was not asked.
func tableOf(features []*adminv1.Feature, hostNetwork bool) capability.Table {
	var t capability.Table
	if len(features) == 0 {
		return t
	}
	own := false
	for _, f := range features {
		own = own || f.GetName() == ownKernel && f.GetSupported()
	}
	for _, f := range features {
		if f.GetName() != ownKernel {
			t.Set(capability.Name(f.GetName()), answer(f.GetSupported()), capability.Declared, "")
		}
	}
	if own {
		const why = "its containers run on a kernel of their own"
		for _, n := range []capability.Name{capability.HostNetwork, capability.HostPID, capability.HostIPC, capability.UserNamespaces, capability.MountPropagation} {
			t.Set(n, capability.No, capability.Declared, why)
		}
		if hostNetwork {
			t.Set(capability.HostNetwork, capability.Unknown, "", "its configuration may give it the host's network")
		}
		for _, n := range []capability.Name{capability.Seccomp, capability.AppArmor, capability.SELinux} {
			t.Set(n, capability.Yes, capability.Declared, why+", where it means nothing")
		}
		return t
	}
	t.Isolation = capability.SharedKernel
	for _, n := range []capability.Name{
		capability.Privileged, capability.HostNetwork, capability.HostPID, capability.HostIPC, capability.MountPropagation, capability.BlockVolumes,
		capability.Devices, capability.HugePages, capability.Sysctls, capability.UnmaskedProc, capability.Exec,
	} {
		t.Set(n, capability.Yes, capability.Declared, "its containers share the host's kernel")
	}
	return t
}

// mayUseHostNetwork: a runtime with a kernel of its own may be told to use the host's
// network, by a flag or in a file that only it reads.
func mayUseHostNetwork(settings []*adminv1.Setting) bool {
	for _, s := range settings {
		switch s.GetKey() {
		case "options.global_flags":
			if strings.Contains(s.GetValue(), "network") {
				return true
			}
		case "runtime_config_path":
			if strings.Trim(s.GetValue(), `"`) != "" {
				return true
			}
		}
	}
	return false
}

func answer(yes bool) capability.Answer {
	if yes {
		return capability.Yes
	}
	return capability.No
}
