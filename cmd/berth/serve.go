package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/log"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/coredump"
	"github.com/berth-cri/berth/pkg/daemon"
	"github.com/berth-cri/berth/pkg/lifecycle"
)

type serveFlags struct {
	places              config.Options
	logLevel, logFormat string
	socket              string
	set                 []string
	stopTimeout         time.Duration
}

// serveCommand returns the command "berth serve", with its flags in f.
func serveCommand(f *serveFlags) *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon in the foreground",
		Long: "Run the daemon in the foreground until SIGTERM or SIGINT. When the daemon exits, pods\n" +
			"keep running. When the daemon starts again, it recovers the pods.\n\n" +
			"If the configuration files have mistakes, the daemon uses the last accepted\n" +
			"configuration and is degraded. Without an accepted configuration, the daemon does not\n" +
			"start.",
		Example: "  berth serve\n  berth serve -c ./config.toml --set engine.root=/var/tmp/berth",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return serve(c, *f) },
	}
	cli.PlaceFlags(c, &f.places)
	flags := c.Flags()
	flags.StringVar(&f.logLevel, "log-level", "", "trace, debug, info, warn or error (log.level)")
	flags.StringVar(&f.logFormat, "log-format", "", "text or json (log.format)")
	flags.StringVar(&f.socket, "socket", "", "path of the CRI socket (server.socket)")
	flags.StringArrayVar(&f.set, "set", nil, "`key=value` that overrides all files, such as cni.conf_dir=/etc/cni/net.d; repeatable")
	flags.DurationVar(&f.stopTimeout, "stop-timeout", daemon.DefaultStopTimeout, "how long to wait for a clean stop")
	return c
}

func serve(c *cobra.Command, f serveFlags) error {
	// Signals are caught first: from here on SIGHUP does not end the process.
	ctx, hangups, done := untilSignal(c.Context())
	defer done()
	if err := coredump.Forbid(); err != nil { // memory holds credentials of registries
		return err
	}
	options, err := f.options()
	if err != nil {
		return commandline.Wrong(err)
	}
	dropIns, vendor := options.Dirs()
	if dropIns, err = filepath.Abs(dropIns); err != nil {
		return err
	}
	options.DropInDir = dropIns
	cfg, err := config.Start(options)
	if err != nil {
		return commandline.Wrong(fmt.Errorf("%w; correct the configuration, then run \"berth check\"", err))
	}
	if err := setLog(cfg.Log); err != nil {
		return commandline.Wrong(err)
	}
	// Non-root users in pods read files that the daemon writes, and containers inherit its umask
	// through its children. An inherited umask must not restrict either.
	unix.Umask(0o022)

	watchdog, err := systemd.SdWatchdogEnabled(true)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read watchdog settings of the service manager; sending no keep-alive")
	}
	d, err := daemon.New(daemon.Options{
		Config: cfg, StopTimeout: f.stopTimeout, NotifySocket: takeEnv("NOTIFY_SOCKET"), Watchdog: watchdog,
		Loader: newLoader(options, cfg), Apply: applyLog, DropIns: dropIns, Vendor: vendor,
	})
	if err != nil {
		return err
	}
	go reloadOn(ctx, hangups, d.Reload)
	return d.Run(ctx)
}

// options returns the flags as options of a configuration.
func (f serveFlags) options() (config.Options, error) {
	o := f.places
	o.Flags = map[string]string{}
	for key, value := range map[string]string{
		"log.level": f.logLevel, "log.format": f.logFormat, "server.socket": f.socket,
	} {
		if value != "" {
			o.Flags[key] = value
		}
	}
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return o, fmt.Errorf("--set %q: write it as key=value", s)
		}
		o.Flags[key] = value
	}
	return o, nil
}

func setLog(l config.Log) error {
	if err := log.SetLevel(l.Level); err != nil {
		return fmt.Errorf("log.level: %w", err)
	}
	if err := log.SetFormat(log.OutputFormat(l.Format)); err != nil {
		return fmt.Errorf("log.format: %w", err)
	}
	logrus.SetFormatter(printableMessages{logrus.StandardLogger().Formatter, isJournal(os.Stderr, os.Getenv("JOURNAL_STREAM"))})
	return nil
}

// takeEnv reads a variable and removes it, so that no child inherits it.
func takeEnv(name string) string {
	value := os.Getenv(name)
	_ = os.Unsetenv(name) // fails only for invalid names
	return value
}

// untilSignal returns a context that ends with SIGTERM or SIGINT, and a channel of SIGHUPs. The
// channel buffers one: a reload that has not begun yet reads the latest files. Signals are caught,
// never ignored, because children would inherit ignored ones. They stay caught while the daemon
// stops: stopping has its own bound, and a second signal does not speed it up.
func untilSignal(ctx context.Context) (_ context.Context, hangups <-chan os.Signal, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ends, reloads, pipes := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGTERM, unix.SIGINT)
	signal.Notify(reloads, unix.SIGHUP)
	// SIGPIPE is sent when the reader of the log exits. Unless caught, Go ends the process on it.
	signal.Notify(pipes, unix.SIGPIPE)
	go func() {
		select {
		case s := <-ends:
			log.G(ctx).WithField("signal", s.String()).Info("Stopping")
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, reloads, func() {
		signal.Stop(ends)
		signal.Stop(reloads)
		signal.Stop(pipes)
		cancel()
	}
}

// reloadOn requests a reload after each SIGHUP, including one before the daemon was created, until
// ctx ends.
func reloadOn(ctx context.Context, hangups <-chan os.Signal, reload func(lifecycle.Trigger)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			reload(lifecycle.TriggerSignal)
		}
	}
}
