// Command demo shows berth at work: it starts `berth serve` without any
// configuration file, runs a pod under every runtime that berth finds on this
// machine, from an image that a registry on loopback serves, and prints what ran
// them. It needs root, and leaves nothing behind, Ctrl-C or not.
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

// required are the handlers of the runtimes that `make deps runtimes` installs and builds, each
// of which must carry a pod. Others that are found here may fail for reasons of
// their own (a VM runtime without KVM): that is shown, and is no failure.
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
	// Where the runtimes were built, before the system's own directories.
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
		fmt.Fprintf(out, "%s is there and is left alone: berth starts with an empty configuration of its own\n", config.DefaultFile)
		options.NoConfig = false
	}
	berth := testbed.StartBerth(t, options)
	fmt.Fprintf(out, "berth serves %s\n", berth.Socket)

	var handlers []string
	// A handler that a busy machine was too slow to probe in time is served when its probe has ended.
	testbed.Eventually(t, time.Minute, func() error {
		handlers = readyHandlers(t, berth.Client)
		for _, name := range required {
			if !slices.Contains(handlers, name) {
				return fmt.Errorf("berth does not serve %s, which should be here: its handlers are %v", name, handlers)
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

	// Supervisors without pods wait a minute for the next; a restart sends them away.
	berth.Restart(t)
	berth.NoLeaks(t, before)
	if !t.Failed() {
		fmt.Fprintf(out, "\nthe pods are gone, and left nothing behind\n")
	}
}

// readyHandlers returns the names of the handlers that berth announces.
func readyHandlers(t testbed.T, client *testbed.Client) []string {
	status, err := client.RuntimeServiceClient.Status(t.Context(), &runtimeapi.StatusRequest{})
	testbed.Mustf(t, err, "ask berth for its status")
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

// row is what the demo shows of a handler.
type row struct {
	handler string
	runtime string
	release string        // uname -r, inside
	first   time.Duration // until the handler's first pod was ready
	next    time.Duration // until its second was
	logLine string
	err     error
}

// try runs two pods under a handler. Their failure is in the row, not in t: the
// other handlers have their turn.
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

// runtimeOf returns the binary of a handler, found as berth finds it.
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

// verdict fails the demo if a required runtime failed, or if fewer than two
// carried their pods.
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
		t.Errorf("only %d runtimes carried pods; two are the least that shows routing", good)
	}
}

// configured says whether this host has a configuration of its own, which the
// demo must not run with.
func configured(t testbed.T) bool {
	_, err := os.Stat(config.DefaultFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("look for a configuration: %v", err)
	}
	return err == nil
}

// keepForwarding undoes what the bridge plugin does to the whole host.
func keepForwarding(t testbed.T) {
	const path = "/proc/sys/net/ipv4/ip_forward"
	was, err := os.ReadFile(path)
	testbed.Mustf(t, err, "read ip_forward")
	t.Cleanup(func() {
		testbed.Checkf(t, os.WriteFile(path, was, 0o644), "restore ip_forward")
	})
}
