// Command kubelet is as much of a kubelet as an installer deals with: it takes the runtime's
// endpoint from its configuration and flags in the order in which a kubelet does, asks it
// for its version, and says by /healthz whether that answers. A real one does not start
// where a machine in namespaces has no controllers of cgroups.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

func run() error {
	config := flag.String("config", "", "")
	endpoint := flag.String("container-runtime-endpoint", "", "")
	flag.Parse()
	var c struct {
		Endpoint string `json:"containerRuntimeEndpoint"`
	}
	text, err := os.ReadFile(*config)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return err
	}
	if *endpoint == "" {
		*endpoint = c.Endpoint
	}
	conn, err := grpc.NewClient(*endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	http.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		v, err := runtime.Version(ctx, &runtimeapi.VersionRequest{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Write([]byte(v.GetRuntimeName() + "\n")) //nolint:errcheck // who asked is gone
	})
	server := &http.Server{Addr: "127.0.0.1:10248", ReadHeaderTimeout: time.Second}
	return server.ListenAndServe()
}
