package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/observe"
	"github.com/berth-cri/berth/pkg/observe/scrape"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/remote"
	"github.com/berth-cri/berth/pkg/router"
)

// maxMessage bounds a gRPC message, in bytes. A kubelet accepts 16 MiB; lists of other clients, and
// the output of ExecSync, may need more.
const maxMessage = 80 << 20

// window is the gRPC flow-control window, in bytes.
const window = 1 << 20

// callWorkers is the number of pooled goroutines for calls. Further calls get their own.
const callWorkers = 8

// assemble creates the parts, and adds their cleanup to the teardown.
func (d *Daemon) assemble(ctx context.Context) (*node, error) {
	registry := handler.NewRegistry(handler.EmptyTable[router.Backend]())
	n := &node{registry: registry, pods: router.NewPods(registry), recovered: make(chan struct{})}
	c := d.options.Config
	known := &Handlers{registry: registry, first: c.Runtimes, candidates: lifecycle.Candidates(c), cgroupPrefix: c.Engine.CgroupPrefix}
	var err error
	if n.engine, err = d.openEngine(ctx, known); err != nil {
		return nil, err
	}
	n.prober = d.options.NewProber(n.engine, n.recovered)
	if n.remotes, err = d.newRemotes(ctx, n); err != nil {
		return nil, err
	}
	if n.handlers, err = d.newLifecycle(ctx, n, known); err != nil {
		return nil, err
	}
	n.remotes.follow(n.handlers)
	n.face = router.New(n.pods, nodeReport{n.handlers, n.engine, n.remotes}, n.handlers)
	n.meter = overhead.New(ctx, overhead.Options{Pods: n.engine.Overhead, Ready: n.face.Ready})
	n.labels = newNodeLabels(d.options.Config.NodeLabels, n.handlers)
	return n, nil
}

// setUp begins with the steps that another process can block, continues with those that read the
// disk, and ends with those that make the daemon visible. Each step adds its undo to the teardown.
func (d *Daemon) setUp(ctx context.Context) error {
	begin := time.Now()
	// Another daemon on the socket is detected before anything on disk is opened.
	server := d.options.Config.Server
	listener, err := d.listenFor(ctx, "CRI socket", server.Socket, server.SocketMode, server.SocketGroup)
	if err != nil {
		return err
	}
	agents, err := d.listenForAgents(ctx)
	if err != nil {
		return err
	}
	starts := observe.NewStarts()
	options, metrics, err := d.observe(ctx, starts)
	if err != nil {
		return err
	}
	n, err := d.assemble(ctx)
	if err != nil {
		return err
	}
	d.handlers, n.starts = n.handlers, starts
	go d.forwardReloads(n.handlers)
	if images := n.engine.Images(); images != nil {
		go d.followSnapshotters(n.handlers, images)
	}
	d.serve(listener, n.face, append(options, remote.LoopGuard(n.remotes.instance, n.remotes.pool.Behind)...))
	if err := d.serveAdmin(ctx, n); err != nil {
		return err
	}
	n.handlers.Start() // runtimes are probed during recovery
	if err := n.engine.Recover(ctx); err != nil {
		return fmt.Errorf("recover the pods of this node: %w", err)
	}
	n.pods.Adopt(n.engine)
	close(n.recovered)
	n.remotes.adopt(ctx)
	if metrics != nil {
		metrics.MustRegister(scraped(n.handlerMetrics), scraped(n.backendMetrics), scraped(n.overheadMetrics), scraped(n.imageMetrics), n.handlers, n.engine.CheckpointDurations())
	}
	if err := n.handlers.Ready(ctx); err != nil {
		return err
	}
	n.face.SetReady()
	d.serveAgents(ctx, n.engine, agents, metrics)
	d.keepNodeLabels(ctx, n, metrics)
	d.notify.send(ctx, ready+"\nSTATUS="+statusLine(n.handlers.Current(), n.handlers.Handlers()))
	d.announce(ctx, n.registry, time.Since(begin))
	return d.feedWatchdog(ctx)
}

// observe starts metrics and traces if they are configured. It returns the server options that feed
// metrics, traces and starts, and the registry for further metrics, or nil.
func (d *Daemon) observe(ctx context.Context, starts *observe.Starts) ([]grpc.ServerOption, prometheus.Registerer, error) {
	var options []grpc.ServerOption
	if t := d.options.Config.Tracing; t.Endpoint != "" {
		tracing, err := observe.StartTracing(ctx, observe.TracingOptions{
			Endpoint: t.Endpoint, SampleRatio: t.SampleRatio, Insecure: t.Insecure, Version: d.options.Build.Version,
		})
		if err != nil {
			return nil, nil, err
		}
		d.teardown.add("tracing", tracing.Close)
		options = tracing.ServerOptions()
	}
	metrics, err := d.metrics(ctx)
	if err != nil {
		return nil, nil, err
	}
	return append(options, observe.New(observe.Options{Metrics: metrics, Starts: starts}).ServerOptions()...), metrics, nil
}

// metrics serves /metrics. It returns nil if no address is configured.
func (d *Daemon) metrics(ctx context.Context) (prometheus.Registerer, error) {
	address := d.options.Config.Metrics.Address
	if address == "" {
		return nil, nil
	}
	l, err := listen(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	registry := scrape.NewRegistry(d.options.Build.Version, d.options.Build.Revision)
	d.teardown.add("metrics", scrape.Serve(ctx, l, registry).Close)
	return registry, nil
}

func (d *Daemon) openEngine(ctx context.Context, known *Handlers) (Engine, error) {
	engine, err := d.options.NewEngine(ctx, d.options.Config, d.options.Build, known)
	if err != nil {
		return nil, fmt.Errorf("open the engine: %w", err)
	}
	d.teardown.add("engine", engine.Close)
	return engine, nil
}

// serve serves the CRI socket. The router rejects every call until the node's pods are recovered.
func (d *Daemon) serve(l net.Listener, face *router.Router, options []grpc.ServerOption) {
	server := grpc.NewServer(slices.Concat(options, face.ServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		// Fixed windows need no measurement, which would cost a ping for each request.
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		// A new goroutine for each call would grow its stack each time.
		grpc.NumStreamWorkers(callWorkers),
		// The engine must not be closed during a call.
		grpc.WaitForHandlers(true),
	})...)
	face.Register(server)
	d.teardown.add("CRI server", func(ctx context.Context) error { return stopServer(ctx, server, face) })
	go d.answer(l, server, "the CRI")
}

// answer serves until the server is stopped. Another error ends the daemon.
func (d *Daemon) answer(l net.Listener, server *grpc.Server, what string) {
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		d.fail(fmt.Errorf("serve %s: %w", what, err))
	}
}

// stopServer gives calls half of the remaining time to end, and then cancels them: the engine
// finishes or undoes their work.
func stopServer(ctx context.Context, server *grpc.Server, r *router.Router) error {
	r.EndStreams()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		server.GracefulStop()
	}()
	deadline, _ := ctx.Deadline() // of StopTimeout
	grace, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	select {
	case <-graceful:
		return nil
	case <-grace.Done():
	}
	go server.Stop() // makes GracefulStop return
	select {
	case <-graceful:
		return nil
	case <-ctx.Done():
		return errors.New("some calls did not finish in time")
	}
}

// announce logs what is served, and the ignored settings of imported files.
func (d *Daemon) announce(ctx context.Context, registry *handler.Registry[router.Backend], took time.Duration) {
	cfg := d.options.Config
	for _, n := range cfg.ImportNotes {
		log.G(ctx).WithField("note", n.String()).Info("Ignoring unsupported setting in imported file")
	}
	table := registry.Current()
	log.G(ctx).WithFields(log.Fields{
		"socket": cfg.Server.Socket, "handlers": table.Names(), "default": table.Default(),
		"version": d.options.Build.Version, "took": took.Round(time.Millisecond).String(),
	}).Info("Serving the CRI")
}
