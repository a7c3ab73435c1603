package installer

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRI asks other daemons by the CRI.
type CRI struct {
	// Root is where the node's root directory is.
	Root string
}

// Handlers implements Backend.
func (c CRI) Handlers(ctx context.Context, endpoint string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path := resolved(c.Root, strings.TrimPrefix(endpoint, "unix://"))
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	status, err := runtimeapi.NewRuntimeServiceClient(conn).Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	return handlersOf(status), nil
}

// handlersOf are the names of a daemon's handlers, without the default one's empty name.
// Daemons that do not list them show them in their configuration.
func handlersOf(status *runtimeapi.StatusResponse) []string {
	var names []string
	for _, h := range status.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	if len(names) == 0 {
		var config struct {
			Containerd struct {
				Runtimes map[string]json.RawMessage `json:"runtimes"`
			} `json:"containerd"`
		}
		if json.Unmarshal([]byte(status.GetInfo()["config"]), &config) == nil {
			for name := range config.Containerd.Runtimes {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}
