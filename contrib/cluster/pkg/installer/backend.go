package installer

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/nodefs"
)

// CRI is a Backend that queries daemons over the CRI.
type CRI struct {
	// Root is the mount point of the node's root directory.
	Root string
}

// Ask implements Backend.
func (c CRI) Ask(ctx context.Context, endpoint string) (Beside, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path := nodefs.Root(c.Root).Resolved(strings.TrimPrefix(endpoint, "unix://"))
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return Beside{}, err
	}
	defer conn.Close()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	state, err := runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return Beside{}, err
	}
	config, err := runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return Beside{}, err
	}
	return Beside{Handlers: handlersOf(state), CgroupDriver: driverOf(config)}, nil
}

// driverOf returns the cgroup driver by its name in berth's configuration; "" if the daemon does
// not report it.
func driverOf(config *runtimeapi.RuntimeConfigResponse) string {
	if config.GetLinux() == nil {
		return ""
	}
	if config.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_CGROUPFS {
		return "cgroupfs"
	}
	return "systemd"
}

// handlersOf returns the names of a daemon's handlers. It omits the default handler, which has an
// empty name, and names that no RuntimeClass can have: in a file's name, some would lead out of
// conf.d. If a daemon lists no handlers, they are read from its configuration.
func handlersOf(state *runtimeapi.StatusResponse) []string {
	var names []string
	for _, h := range state.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	if len(names) == 0 {
		var config struct {
			Containerd struct {
				Runtimes map[string]json.RawMessage `json:"runtimes"`
			} `json:"containerd"`
		}
		if json.Unmarshal([]byte(state.GetInfo()["config"]), &config) == nil {
			for name := range config.Containerd.Runtimes {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return !handlerName.MatchString(name) })
}
