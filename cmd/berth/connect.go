package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

const (
	// adminSocket is where a berth with the default configuration is managed.
	adminSocket = "/run/berth/admin.sock"
	// adminSocketEnv replaces it.
	adminSocketEnv = "BERTH_ADMIN_SOCKET"
)

// callTimeout bounds calls that should take no time at all.
const callTimeout = 30 * time.Second

// remote is what commands that talk to the daemon have in common.
type remote struct {
	socket string
	output string
	// timeout bounds the call; 0 is until it is interrupted.
	timeout time.Duration
}

// flags are those of every command that talks to the daemon.
func (r *remote) flags(c *cobra.Command) {
	c.Flags().StringVar(&r.socket, "admin-socket", "",
		"`path` of the daemon's management socket (default $"+adminSocketEnv+", else "+adminSocket+")")
	outputFlag(c, &r.output)
}

// path is the socket that counts.
func (r *remote) path() string { return cmp.Or(r.socket, os.Getenv(adminSocketEnv), adminSocket) }

// with calls f with a client of the daemon and a context that ends with a signal,
// and explains what it fails with.
func (r *remote) with(c *cobra.Command, f func(ctx context.Context, daemon *client.Client) error) error {
	daemon, err := client.New(r.path())
	if err != nil {
		return err
	}
	defer daemon.Close()
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	return coded(daemon, f(ctx, daemon))
}

// coded gives an error of the daemon its exit status.
func coded(daemon *client.Client, err error) error {
	var own *codedError
	if err == nil || errors.As(err, &own) {
		return err
	}
	err = daemon.Explain(err)
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Invalid() {
		return &codedError{exitConfig, err}
	}
	return err
}

func (r *remote) call(f func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return r.with(c, func(ctx context.Context, daemon *client.Client) error { return f(ctx, c, daemon, args) })
	}
}

// degraded is the end of a command that did what it should and found something
// that is not as it should be.
func degraded(format string, args ...any) error {
	return &codedError{exitDegraded, fmt.Errorf(format, args...)}
}

// completionTimeout is what somebody at a shell waits for a Tab.
const completionTimeout = time.Second

// completeHandlers completes the first argument by the daemon's handlers.
func (r *remote) completeHandlers(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return r.handlerNames(c), cobra.ShellCompDirectiveNoFileComp
}

func (r *remote) handlerNames(c *cobra.Command) []string {
	daemon, err := client.New(r.path())
	if err != nil {
		return nil
	}
	defer daemon.Close()
	ctx, cancel := context.WithTimeout(orBackground(c.Context()), completionTimeout)
	defer cancel()
	resp, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, h := range resp.GetHandlers() {
		names = append(names, h.GetName()+"\t"+stateWord(h.GetState()))
	}
	return names
}

// wide says whether every column is wanted.
func (r *remote) wide() bool { return r.output == "wide" }

func (r *remote) print(w io.Writer, m proto.Message, table func(io.Writer) error) error {
	if r.output != "json" && r.output != "yaml" {
		return table(w)
	}
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	// protojson varies its white space on purpose; what scripts read does not.
	if text, err = yaml.JSONToYAML(text); err != nil {
		return err
	}
	if r.output == "json" {
		if text, err = indented(text); err != nil {
			return err
		}
	}
	_, err = w.Write(text)
	return err
}

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
