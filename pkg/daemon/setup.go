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
	"github.com/berth-cri/berth/pkg/probe"
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

// setUp goes from what may be refused by another process, through what reads
// the disk, to what makes the daemon visible. It adds a step to the teardown
// for each thing that it has done.
func (d *Daemon) setUp(ctx context.Context) error {
	begin := time.Now()
	listener, err := d.listen(ctx)
	if err != nil {
		return err
	}
	options, metrics, err := d.observe(ctx)
	if err != nil {
		return err
	}
	engine, err := d.openEngine(ctx)
	if err != nil {
		return err
	}
	remotes, err := d.newRemotes(ctx, engine)
	if err != nil {
		return err
	}
	if err := d.newLifecycle(ctx, engine, remotes); err != nil {
		return err
	}
	d.serve(listener, engine, remotes, append(options, remote.LoopGuard(remotes.instance, remotes.pool.Behind)...))
	router, handlers := d.router.Load(), d.lifecycle.Load()
	meter := newMeter(ctx, engine, router)
	if err := d.serveAdmin(ctx, remotes.pool.Stranded, meter); err != nil {
		return err
	}
	handlers.Start() // runtimes are asked while pods are recovered
	if err := engine.Recover(ctx); err != nil {
		return fmt.Errorf("recover the pods of this node: %w", err)
	}
	router.Adopt(engine)
	remotes.adopt(ctx, router)
	canaries := d.serveCanaries(engine)
	if metrics != nil {
		metrics.MustRegister(nodeMetrics{d.registry.Load(), router, canaries}, handlers, remoteMetrics{remotes.pool}, overheadMetrics{handlers, meter})
	}
	if err := handlers.Ready(ctx); err != nil {
		return err
	}
	router.SetReady()
	d.keepNodeLabels(ctx, metrics)
	d.notify.send(ctx, ready)
	d.announce(ctx, time.Since(begin))
	return d.feedWatchdog(ctx)
}

// serveCanaries lets probes run pods from now on, and returns what counts them.
func (d *Daemon) serveCanaries(e Engine) canaryRuns {
	probes, ok := d.options.Prober.(*probe.Canaries)
	if !ok {
		return nil
	}
	if by, ok := e.(probe.Canary); ok {
		probes.Serve(by)
	}
	return probes
}

// listen takes the CRI socket. That no other daemon has it is known before
// anything on the disk is opened.
func (d *Daemon) listen(ctx context.Context) (net.Listener, error) {
	s := d.options.Config.Server
	l, err := listenUnix(ctx, s.Socket)
	if err != nil {
		return nil, err
	}
	d.teardown.add("CRI socket", func(context.Context) error { return ignoreClosed(l.Close()) })
	if err := permit(s.Socket, s.SocketMode, s.SocketGroup); err != nil {
		return nil, err
	}
	return l, nil
}

// observe starts metrics and traces if they are configured, and returns the
// options that make a server feed them, and who takes more metrics, if anyone.
func (d *Daemon) observe(ctx context.Context) ([]grpc.ServerOption, prometheus.Registerer, error) {
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
	return append(options, observe.New(observe.Options{Metrics: metrics}).ServerOptions()...), metrics, nil
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
	registry := observe.NewRegistry(d.options.Build.Version, d.options.Build.Revision)
	d.teardown.add("metrics", observe.ServeMetrics(ctx, l, registry).Close)
	return registry, nil
}

// openEngine opens the engine.
func (d *Daemon) openEngine(ctx context.Context) (Engine, error) {
	cfg := d.options.Config
	engine, err := d.options.NewEngine(ctx, cfg, d.options.Build, Handlers{Told: d.definitions, Accepting: d.accepting, Configured: d.configured})
	if err != nil {
		return nil, fmt.Errorf("open the engine: %w", err)
	}
	d.teardown.add("engine", engine.Close)
	return engine, nil
}

// definitions returns the handlers that have something to tell at this moment.
func (d *Daemon) definitions() []*handler.Definition {
	return d.handlersOf(func(s handler.State) bool { return s.Phase != handler.NotReady })
}

// accepting returns those that take new pods at this moment.
func (d *Daemon) accepting() []*handler.Definition { return d.handlersOf(handler.State.AcceptsPods) }

// handlersOf returns the engine's handlers whose state is one that is wanted.
func (d *Daemon) handlersOf(wanted func(handler.State) bool) []*handler.Definition {
	registry := d.registry.Load()
	if registry == nil {
		return d.options.Config.Runtimes
	}
	var definitions []*handler.Definition
	for _, r := range registry.Current().Routes() {
		if wanted(r.State) && r.Definition.Type != "" && r.Definition.Type != handler.CRI {
			definitions = append(definitions, r.Definition)
		}
	}
	return definitions
}

// configured returns all handlers of the engine's that new pods may come to run under.
func (d *Daemon) configured() []*handler.Definition {
	all := lifecycle.CandidatesOf(d.options.Config)
	if m := d.lifecycle.Load(); m != nil {
		all = m.Candidates()
	}
	return slices.DeleteFunc(all, func(d *handler.Definition) bool { return d.Type == handler.CRI })
}

// serve answers on the CRI socket. The router refuses every call until it is
// told that the node's pods are known.
func (d *Daemon) serve(l net.Listener, engine Engine, remotes *remotes, options []grpc.ServerOption) {
	face := router.NewTelling(d.registry.Load(), told{d.lifecycle.Load(), engine, remotes})
	d.router.Store(face)
	server := grpc.NewServer(slices.Concat(options, router.ServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		// Windows that are given are not measured: that costs a ping for each request.
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		// A goroutine for each call would grow its stack for each call.
		grpc.NumStreamWorkers(callWorkers),
		// The engine is not closed under a call that is still being served.
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(face.Unknown),
	})...)
	face.Register(server)
	d.teardown.add("CRI server", func(ctx context.Context) error { return stopServer(ctx, server, face) })
	go func() {
		if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			d.fail(fmt.Errorf("serve the CRI: %w", err))
		}
	}()
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
	grace, cancel := halfOf(ctx)
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

// halfOf is a context with half of what ctx has left.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// announce says once what is served.
func (d *Daemon) announce(ctx context.Context, took time.Duration) {
	cfg := d.options.Config
	for _, n := range cfg.ImportNotes {
		log.G(ctx).WithField("note", n.String()).Info("Ignoring unsupported setting in imported file")
	}
	table := d.registry.Load().Current()
	log.G(ctx).WithFields(log.Fields{
		"socket": cfg.Server.Socket, "handlers": table.Names(), "default": table.Default(),
		"version": d.options.Build.Version, "took": took.Round(time.Millisecond).String(),
	}).Info("Serving the CRI")
}
