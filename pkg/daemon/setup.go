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

// maxMessage is how large a message may be, in bytes. A kubelet takes 16 MiB;
// lists of other clients, and the output of ExecSync, may need more.
const maxMessage = 80 << 20

// window is how much of a request may be on the way before it is read, in bytes.
const window = 1 << 20

// callWorkers is for how many calls at once goroutines are kept. More get their own.
const callWorkers = 8

// assemble makes the parts. What they have to be rid of is added to the teardown.
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
	n.face = router.New(n.pods, told{n.handlers, n.engine, n.remotes}, n.handlers)
	n.meter = overhead.New(ctx, overhead.Options{Pods: n.engine.Overhead, Ready: n.face.Ready})
	n.labels = newNodeLabels(d.options.Config.NodeLabels, n.handlers)
	return n, nil
}

// setUp goes from what may be refused by another process, through what reads
// the disk, to what makes the daemon visible. It adds a step to the teardown
// for each thing that it has done.
func (d *Daemon) setUp(ctx context.Context) error {
	begin := time.Now()
	// That no other daemon has the socket is known before anything on the disk is opened.
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
	go d.passOn(n.handlers)
	if images := n.engine.Images(); images != nil {
		go d.followSnapshotters(n.handlers, images)
	}
	d.serve(listener, n.face, append(options, remote.LoopGuard(n.remotes.instance, n.remotes.pool.Behind)...))
	if err := d.serveAdmin(ctx, n); err != nil {
		return err
	}
	n.handlers.Start() // runtimes are asked while pods are recovered
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

// observe starts metrics and traces if they are configured, and returns the
// options that make a server feed them and starts, and who takes more metrics, if anyone.
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

// metrics serves /metrics, or returns nil if nobody could read them.
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

// serve answers on the CRI socket. The router refuses every call until it is
// told that the node's pods are known.
func (d *Daemon) serve(l net.Listener, face *router.Router, options []grpc.ServerOption) {
	server := grpc.NewServer(slices.Concat(options, face.ServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		// Windows that are given are not measured: that costs a ping for each request.
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		// A goroutine for each call would grow its stack for each call.
		grpc.NumStreamWorkers(callWorkers),
		// The engine is not closed under a call that is still being served.
		grpc.WaitForHandlers(true),
	})...)
	face.Register(server)
	d.teardown.add("CRI server", func(ctx context.Context) error { return stopServer(ctx, server, face) })
	go d.answer(l, server, "the CRI")
}

// answer serves until the server is stopped. If that fails, it ends the daemon.
func (d *Daemon) answer(l net.Listener, server *grpc.Server, what string) {
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		d.fail(fmt.Errorf("serve %s: %w", what, err))
	}
}

// stopServer lets calls end for half of the time that there is, and then ends
// them: what they began is finished or undone by the engine.
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

// announce says once what is served.
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
