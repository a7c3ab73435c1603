package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// TestMain keeps the log out of the output of a test that fails.
func TestMain(m *testing.M) {
	if err := log.SetLevel("panic"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

// bed is a Manager and, under a test's control, everything that it uses.
type bed struct {
	t   *testing.T
	dir string
	m   *Manager

	mu        sync.Mutex
	next      *config.Config
	loadErr   error
	loads     int
	inForce   []*config.Config
	loading   func() // called by each load, unlocked
	failures  map[string]error
	selfCheck map[string]error // errors of self-check pods, by path
	checks    []check
	sums      map[string]string // SHA256 of candidates, by path
	hanging   map[string]chan struct{}
	pods      map[string]int
	published []*Plan
	refuse    error
	able      map[string]capability.Answer // whether runtimes can exec, by path
	announced []string
}

// check is one call of bed.Check; anew is set for a depth above Look.
type check struct {
	path string
	anew bool
}

func newBed(t *testing.T, start *config.Config) *bed {
	t.Helper()
	b := &bed{t: t, dir: t.TempDir(), next: start, failures: map[string]error{}, selfCheck: map[string]error{}, sums: map[string]string{}, hanging: map[string]chan struct{}{}, pods: map[string]int{}}
	b.open(start)
	return b
}

// open creates and starts a Manager, as a daemon does at its start.
func (b *bed) open(start *config.Config) {
	b.t.Helper()
	var err error
	if b.m, err = New(b.t.Context(), Options{
		Config: start, Loader: b, Prober: b, PodCounter: b, Publisher: b, Announcer: b, CapabilitySource: b, Dir: filepath.Join(b.dir, "root"),
	}); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.close() })
	b.m.Start()
	test.Must(b.t, b.m.Ready(b.t.Context()))
}

func (b *bed) close() {
	test.Check(b.t, b.m.Close())
}

func (b *bed) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *bed) Load(context.Context) (*config.Config, error) {
	b.mu.Lock()
	hook := b.loading
	b.loads++
	b.mu.Unlock()
	if hook != nil {
		hook()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next, b.loadErr
}

func (b *bed) InForce(_ context.Context, c *config.Config) {
	b.set(func() { b.inForce = append(b.inForce, c) })
}

func (b *bed) Paths() []string { return []string{filepath.Join(b.dir, "config.toml")} }

func (b *bed) Check(ctx context.Context, d *handler.Definition, depth probe.Depth) (*probe.Runtime, error) {
	b.mu.Lock()
	b.checks = append(b.checks, check{d.Path, depth > probe.Look})
	hang, err, sum := b.hanging[d.Path], b.failures[d.Path], b.sums[d.Path]
	b.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if err == nil && depth >= probe.RunPod {
		b.mu.Lock()
		err = b.selfCheck[d.Path]
		b.mu.Unlock()
	}
	if err != nil && sum == "" {
		return nil, err
	}
	return &probe.Runtime{Path: d.Path, Version: "1", SHA256: sum}, err
}

func (b *bed) Capabilities(_ context.Context, d *handler.Definition, rt *probe.Runtime) (t capability.Table) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rt == nil {
		b.t.Errorf("Capabilities of %s is called without a runtime", d.Name)
	}
	if can, known := b.able[d.Path]; known {
		t.Set(capability.Exec, can, capability.Ran, "")
	}
	return t
}

func (b *bed) Pods() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.pods)
}

func (b *bed) Publish(p *Plan) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return b.refuse
	}
	if _, there := p.entry(p.Default); !there {
		return errors.New("the default is not in the plan")
	}
	b.published = append(b.published, p)
	return nil
}

func (b *bed) Reloading(context.Context) {
	b.set(func() { b.announced = append(b.announced, "reloading") })
}

func (b *bed) Reloaded(context.Context, Current, []Handler) {
	b.set(func() { b.announced = append(b.announced, "reloaded") })
}

// last returns the plan in force.
func (b *bed) last() *Plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.published[len(b.published)-1]
}

// reload makes next the configuration of the files and reloads.
func (b *bed) reload(next *config.Config) (Outcome, error) {
	b.t.Helper()
	b.set(func() { b.next, b.loadErr = next, nil })
	return b.m.Reload(b.t.Context(), TriggerAdmin)
}

func (b *bed) must(o Outcome, err error) Outcome {
	b.t.Helper()
	test.Must(b.t, err)
	return o
}

// phase returns the phase of a handler, or "" if the plan does not contain it.
func (b *bed) phase(name string) handler.Phase {
	e, _ := b.last().entry(name)
	return e.State.Phase
}

func (b *bed) wait(what string, is func() bool) {
	b.t.Helper()
	test.Eventually(b.t, what, is)
}

// conf returns a configuration with handlers by name and path; the first is the default.
func conf(pairs ...string) *config.Config {
	c := &config.Config{}
	for i := 0; i < len(pairs); i += 2 {
		c.Runtimes = append(c.Runtimes, &handler.Definition{Name: pairs[i], Type: handler.OCI, Path: pairs[i+1]})
	}
	if len(pairs) > 0 {
		c.DefaultRuntime = pairs[0]
	}
	return c
}

func broken(c *config.Config, name, reason string) *config.Config {
	c.Broken = append(c.Broken, config.Broken{Name: name, Origin: name + ".toml:1", Reason: reason})
	return c
}
