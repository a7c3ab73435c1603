// Command demo starts `berth serve` without a configuration file, runs pods with every runtime that
// berth finds on this machine, from an image that a registry on loopback serves, and prints a table
// of the results. It needs root, and leaves nothing behind, even after Ctrl-C.
//
//	go run ./integration/demo
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// required are the handlers of the runtimes that `make deps runtimes` installs and builds. Their
// pods must run. Other handlers may fail (a VM runtime without KVM): the table shows that, but the
// demo does not fail.
var required = []string{testbed.Runc, testbed.Crun, "gvisor"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := testbed.Run(ctx, "demo", os.Stderr, func(t testbed.T) { demo(t, os.Stdout) })
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "demo: interrupted; cleaned up")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(t testbed.T, out io.Writer) {
	testbed.NeedNetwork(t)
	keepForwarding(t)
	// The directories of the built runtimes come before those of the system.
	var places []string
	for _, runtime := range []string{testbed.Runc, testbed.Crun, testbed.Runsc} {
		places = append(places, filepath.Dir(testbed.Part(t, runtime)))
	}
	places = append(places, hostfiles.SearchDirs()...)
	testbed.Mustf(t, os.Setenv(hostfiles.SearchPathEnv, strings.Join(places, string(os.PathListSeparator))), "set %s", hostfiles.SearchPathEnv)

	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	image := registry.Push(t, "demo/busybox:1", testbed.Busybox(t))
	fmt.Fprintf(out, "a registry at %s serves %s\n", registry.URL(), image)

	options := testbed.Options{CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{registry}, NoConfig: true}
	if configured(t) {
		fmt.Fprintf(out, "%s exists and is not used: berth starts with a new, empty configuration\n", config.DefaultFile)
		options.NoConfig = false
	}
	berth := testbed.StartBerth(t, options)
	fmt.Fprintf(out, "berth serves %s\n", berth.Socket)

	var handlers []string
	// On a busy machine, a handler is served only after its slow probe has ended.
	testbed.Eventually(t, time.Minute, func() error {
		handlers = readyHandlers(t, berth.Client)
		for _, name := range required {
			if !slices.Contains(handlers, name) {
				return fmt.Errorf("berth does not serve the required handler %s: its handlers are %v", name, handlers)
			}
		}
		return nil
	})
	for _, handler := range handlers {
		berth.Client.Pull(t, handler, image)
	}
	before := berth.Snapshot(t)

	fmt.Fprintf(out, "running pods under %s\n\n", strings.Join(handlers, ", "))
	var rows []row
	for _, handler := range handlers {
		rows = append(rows, try(t, berth.Client, handler, image))
	}
	printTable(out, rows)
	verdict(t, rows)

	// Idle supervisors wait a minute for the next pod; a restart ends them.
	berth.Restart(t)
	berth.NoLeaks(t, before)
	if !t.Failed() {
		fmt.Fprintf(out, "\nthe pods are gone, and left nothing behind\n")
	}
}

// readyHandlers returns the names of the handlers that berth announces.
func readyHandlers(t testbed.T, client *testbed.Client) []string {
	status, err := client.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{})
	testbed.Mustf(t, err, "get berth's status")
	var names []string
	for _, handler := range status.GetRuntimeHandlers() {
		// "" is the default handler, which has a name too.
		if name := handler.GetName(); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// row is a handler's row of the table.
type row struct {
	handler string
	runtime string
	release string        // uname -r, inside
	first   time.Duration // until the handler's first pod was ready
	next    time.Duration // until its second was
	logLine string
	err     error
}

// try runs two pods with a handler. A failure is in the row and does not end t, so that the demo
// continues with the other handlers.
func try(t testbed.T, client *testbed.Client, handler, image string) row {
	r := row{handler: handler, runtime: runtimeOf(handler)}
	r.err = testbed.Run(t.Context(), handler, os.Stderr, func(run testbed.T) {
		greeting := "hello from a pod under " + handler
		spec := testbed.PodSpec{
			Handler: handler,
			Image:   image,
			Command: []string{"sh", "-c", `echo "$0"; exec sleep 600`, greeting},
		}
		pod := client.RunPod(run, spec)
		r.first = pod.Ready
		r.release = strings.TrimSpace(pod.Container.Exec(run, "uname", "-r"))
		r.logLine = pod.Container.WaitLog(run, greeting).Text
		r.next = client.RunPod(run, spec).Ready
	})
	return r
}

// runtimeOf returns the path of a handler's runtime, as berth finds it.
func runtimeOf(name string) string {
	for _, definition := range config.Discover(hostfiles.SearchDirs()) {
		if definition.Name == name {
			return definition.Path
		}
	}
	return "?"
}

// printTable writes the table.
func printTable(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "HANDLER\tRUNTIME\tUNAME -R\tFIRST POD\tNEXT POD\tLOG LINE")
	for _, r := range rows {
		if r.err != nil {
			reason, _, _ := strings.Cut(r.err.Error(), "\n")
			fmt.Fprintf(w, "%s\t%s\tfailed: %s\n", r.handler, r.runtime, reason)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d ms\t%d ms\t%s\n", r.handler, r.runtime, r.release, r.first.Milliseconds(), r.next.Milliseconds(), r.logLine)
	}
}

// verdict fails the demo if a required handler failed, or if fewer than two handlers ran their
// pods.
func verdict(t testbed.T, rows []row) {
	good := 0
	for _, r := range rows {
		switch {
		case r.err == nil:
			good++
		case slices.Contains(required, r.handler):
			t.Errorf("%s: %v", r.handler, r.err)
		default:
			t.Logf("%s: %v", r.handler, r.err)
		}
	}
	if good < 2 {
		t.Errorf("only %d handlers ran pods; routing needs at least 2", good)
	}
}

// configured reports whether this host has a configuration, which the demo must not use.
func configured(t testbed.T) bool {
	_, err := os.Stat(config.DefaultFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("look for a configuration: %v", err)
	}
	return err == nil
}

// keepForwarding restores the host's ip_forward at the end, because the bridge plugin sets it.
func keepForwarding(t testbed.T) {
	const path = "/proc/sys/net/ipv4/ip_forward"
	was, err := os.ReadFile(path)
	testbed.Mustf(t, err, "read ip_forward")
	t.Cleanup(func() {
		testbed.Checkf(t, os.WriteFile(path, was, 0o644), "restore ip_forward")
	})
}
