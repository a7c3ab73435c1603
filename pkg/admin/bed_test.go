package admin_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/admin"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/observe"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// bed is the service on a real socket, with a real lifecycle.Manager that reads
// real files. Pods and probes of runtimes are fakes.
type bed struct {
	*client.Client
	t       *testing.T
	dir     string
	socket  string
	manager *lifecycle.Manager
	node    *node
}

// node fakes the pods and the probes of runtimes.
type node struct {
	mu     sync.Mutex
	pods   map[string]admin.Pod // by id
	broken map[string]bool      // by path of the runtime
	slow   chan struct{}        // probes wait until it is closed, unless it is nil
	// replaced are the SHA256 of replaced programs, by path.
	replaced map[string]string
}

func (n *node) Check(_ context.Context, d *handler.Definition, _ probe.Depth) (*probe.Runtime, error) {
	n.mu.Lock()
	slow := n.slow
	n.mu.Unlock()
	if slow != nil {
		<-slow
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken[d.Path] {
		return nil, fmt.Errorf("%s does not answer; install it: %w", d.Path, errdefs.ErrUnavailable)
	}
	return &probe.Runtime{Path: d.Path, Name: probe.Runc, Version: "1.2.3"}, nil
}

func (n *node) Capabilities(context.Context, *handler.Definition, *probe.Runtime) capability.Table {
	t := capability.Table{Isolation: capability.SharedKernel, IsolationSource: capability.Declared, SeccompActions: []string{"SCMP_ACT_ALLOW"}}
	t.Set(capability.Exec, capability.Yes, capability.Ran, "")
	t.Set(capability.SELinux, capability.No, capability.Probed, "this node has none")
	return t
}

func (n *node) Pods() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	live := map[string]int{}
	for _, p := range n.pods {
		live[p.Handler]++
	}
	return live
}

func (n *node) List(context.Context) ([]admin.Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []admin.Pod
	for p := range maps.Values(n.pods) {
		all = append(all, p)
	}
	return all, nil
}

func (n *node) Find(id string) (admin.Place, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p, ok := n.pods[strings.TrimSuffix(id, "-container")]; ok {
		at := admin.Place{Sandbox: p.ID, Handler: p.Handler, Backend: "engine"}
		if id != p.ID {
			at.Container = id
		}
		return at, nil
	}
	return admin.Place{}, fmt.Errorf("no id begins with %q: %w", id, errdefs.ErrNotFound)
}

// Installed returns the same program for each path, until a test replaces it.
func (n *node) Installed(_ context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken[d.Path] {
		return nil, errdefs.ErrUnavailable
	}
	return []handler.OwnedBinary{{Path: d.Path, SHA256: cmp.Or(n.replaced[d.Path], "abc"), Version: "1.2.4"}}, nil
}

func (n *node) replace(path, sha256 string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replaced[path] = sha256
}

func (n *node) run(id, name string, d *handler.Definition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[id] = admin.Pod{
		ID: id, Namespace: "default", Name: name, UID: "uid-" + name, Handler: d.Name, Ready: true,
		Created: time.Now(), Containers: 1, Pin: admin.Pin{Definition: d, Binaries: []handler.OwnedBinary{{Path: d.Path, Runs: "/kept/runc", SHA256: "abc", Version: "1.2.3"}}},
	}
}

func (n *node) end(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, id)
}

func (n *node) breaks(path string, broken bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken[path] = broken
}

// files reads the configuration files as a running daemon does.
type files struct{ options config.Options }

func (f files) Load(context.Context) (*config.Config, error) { return config.Load(f.options) }
func (files) InForce(context.Context, *config.Config)        {}
func (files) Paths() []string                                { return nil }

func (f files) Read(ctx context.Context) (*config.Config, error) { return f.Load(ctx) }

func (f files) Check(_ context.Context, file string, text []byte) error {
	o := f.options
	o.Overlay = map[string][]byte{file: text}
	_, err := config.Load(o)
	return err
}

// published accepts every plan.
type published struct{}

func (published) Publish(*lifecycle.Plan) error { return nil }

func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedWith(t, func(*admin.Options) {})
}

func newBedWith(t *testing.T, more func(*admin.Options)) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), node: &node{pods: map[string]admin.Pod{}, broken: map[string]bool{}, replaced: map[string]string{}}}
	for _, name := range []string{"bin/runc", "bin/crun", "bin/berth-shim", "bin/berth-pause"} {
		b.write(name, "#!/bin/sh\n", 0o755)
	}
	b.write("config.toml", "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"$DIR/bin/runc\"\n[handlers]\nwatch = false\n", 0o644)
	loader := files{config.Options{File: b.path("config.toml"), VendorDir: b.path("vendor")}}
	cfg := test.Value(config.Load(loader.options))(t)
	b.manager = test.Value(lifecycle.New(t.Context(), lifecycle.Options{
		Config: cfg, Loader: loader, Prober: b.node, PodCounter: b.node, Publisher: published{}, CapabilitySource: b.node, Dir: b.path("state"),
	}))(t)
	t.Cleanup(func() { test.Check(t, b.manager.Close()) })
	b.manager.Start()
	test.Must(t, b.manager.Ready(t.Context()))
	test.Eventually(t, "runc's capabilities are known", func() bool { return !b.manager.Handlers()[0].Capabilities.Empty() })
	b.serve(loader, more)
	return b
}

func noPods(context.Context) (map[string]overhead.Pods, error) {
	return map[string]overhead.Pods{}, nil
}

// serve serves on a socket with a short path: t.TempDir contains the test's name.
func (b *bed) serve(loader files, more func(*admin.Options)) {
	b.t.Helper()
	dir, err := os.MkdirTemp("", "ba-")
	test.Must(b.t, err)
	b.t.Cleanup(func() { os.RemoveAll(dir) })
	test.Must(b.t, os.Chmod(dir, 0o755))
	b.socket = filepath.Join(dir, "admin.sock")
	options := admin.Options{
		Lifecycle: b.manager, Rollouts: b.manager, Pods: b.node, Files: loader, DropIns: b.path("conf.d"), Vendor: b.path("vendor"),
		Version: "1.2.3", CRISocket: "/run/x.sock", AdminSocket: b.socket, Recovering: func() bool { return false },
		Faults: func() []string { return nil }, Unresponsive: func(context.Context) []string { return nil },
		Overheads: overhead.New(b.t.Context(), overhead.Options{Pods: noPods, Ready: func() bool { return true }}),
		Failures:  func(string) string { return "" }, Starts: observe.NewStarts(), CheckpointsInUse: func() []string { return nil },
	}
	more(&options)
	server := grpc.NewServer(admin.ServerOptions()...)
	admin.Register(server, options)
	l, err := net.Listen("unix", b.socket)
	test.Must(b.t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	b.t.Cleanup(func() {
		server.Stop()
		test.Check(b.t, <-ended)
	})
	if b.Client, err = client.New(b.socket); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(b.Close)
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// write creates a file, and replaces $DIR in its text by the directory.
func (b *bed) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	file := b.path(name)
	test.Must(b.t, os.MkdirAll(filepath.Dir(file), 0o755))
	test.Must(b.t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "$DIR", b.dir)), mode))
	test.Must(b.t, os.Chmod(file, mode))
}

// read returns a file's text with $DIR for the directory, or "" if the file does not exist.
func (b *bed) read(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(b.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), b.dir, "$DIR")
}

// failure returns the explained error of a call.
func (b *bed) failure(err error) *client.Error {
	b.t.Helper()
	var e *client.Error
	if !errors.As(b.Explain(err), &e) {
		b.t.Fatalf("not the error of a call: %v", err)
	}
	e.Text = strings.ReplaceAll(e.Text, b.dir, "$DIR")
	return e
}

// definition returns the current Definition of a handler.
func (b *bed) definition(name string) *handler.Definition {
	b.t.Helper()
	h, err := b.manager.Handler(name)
	test.Must(b.t, err)
	return h.Definition
}
