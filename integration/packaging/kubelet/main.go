// Command kubelet is the part of a kubelet that an installer needs: like a kubelet, it reads the
// runtime's endpoint from its configuration, which a flag overrides, and /healthz reports whether
// the runtime answers. A real kubelet does not start in a container without cgroup controllers.
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
		w.Write([]byte(v.GetRuntimeName() + "\n")) //nolint:errcheck // the client has disconnected
	})
	server := &http.Server{Addr: "127.0.0.1:10248", ReadHeaderTimeout: time.Second}
	return server.ListenAndServe()
}
