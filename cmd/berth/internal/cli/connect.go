// Package cli holds the shared parts of berth's commands: connections to the daemon, places of its
// configuration, and output of sizes, times and progress.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

const (
	// adminSocket is the management socket of the default configuration.
	adminSocket = "/run/berth/admin.sock"
	// socketEnv is the environment variable that replaces adminSocket.
	socketEnv = "BERTH_ADMIN_SOCKET"
)

// CallTimeout bounds calls that should return at once.
const CallTimeout = 30 * time.Second

// completionTimeout bounds a completion in a shell.
const completionTimeout = time.Second

// maxCRIAnswer bounds an answer of the CRI, in bytes.
const maxCRIAnswer = 80 << 20

// Remote holds the flags of commands that call the daemon.
type Remote struct {
	output.TableFlags

	socket string
	Output string
	// Timeout bounds the call; 0 means until an interrupt.
	Timeout time.Duration
}

// Flags adds the flags of a command that calls the daemon and has a result.
func (r *Remote) Flags(c *cobra.Command) {
	r.SocketFlag(c)
	output.Flag(c, &r.Output, output.Forms...)
}

// SocketFlag adds the flag of every command that calls the daemon.
func (r *Remote) SocketFlag(c *cobra.Command) {
	c.Flags().StringVar(&r.socket, "admin-socket", "",
		"`path` of the daemon's management socket (default $"+socketEnv+", else "+adminSocket+")")
}

// Connect returns a client for the daemon, which connects with its first call.
func (r *Remote) Connect() (*client.Client, error) {
	return client.New(cmp.Or(r.socket, os.Getenv(socketEnv), adminSocket))
}

// Call wraps f as a command's function. f gets a client and a context that ends with a signal.
func (r *Remote) Call(f func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		return r.With(c, func(ctx context.Context, daemon *client.Client) error { return f(ctx, c, daemon, args) })
	}
}

// With calls f with a client and a context that ends with a signal, and explains its error.
func (r *Remote) With(c *cobra.Command, f func(ctx context.Context, daemon *client.Client) error) error {
	daemon, err := r.Connect()
	if err != nil {
		return err
	}
	defer daemon.Close()
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Timeout)
		defer cancel()
	}
	err = f(ctx, daemon)
	if commandline.Status(err) != commandline.Failed {
		return err
	}
	var e *client.Error
	if err = daemon.Explain(err); errors.As(err, &e) && e.Invalid() {
		return commandline.Wrong(err)
	}
	return err
}

// CRI is a connection to the daemon's CRI.
type CRI struct {
	runtimeapi.ImageServiceClient
	runtimeapi.RuntimeServiceClient
	Daemon *client.Client

	connection *grpc.ClientConn
}

// ConnectCRI returns clients of the CRI, which connect with their first call.
func ConnectCRI(ctx context.Context, daemon *client.Client) (CRI, error) {
	st, err := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
	if err != nil {
		return CRI{}, err
	}
	connection, err := grpc.NewClient("unix://"+st.GetCriSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxCRIAnswer)))
	if err != nil {
		return CRI{}, fmt.Errorf("connect to %s: %w", st.GetCriSocket(), err)
	}
	return CRI{runtimeapi.NewImageServiceClient(connection), runtimeapi.NewRuntimeServiceClient(connection), daemon, connection}, nil
}

// Close closes the connection.
func (c CRI) Close() { c.connection.Close() }

// CallCRI is Call for a command that uses the CRI.
func (r *Remote) CallCRI(f func(ctx context.Context, c *cobra.Command, cri CRI, args []string) error) func(*cobra.Command, []string) error {
	return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
		cri, err := ConnectCRI(ctx, daemon)
		if err != nil {
			return err
		}
		defer cri.Close()
		return f(ctx, c, cri, args)
	})
}

// Complete completes an argument with names from the daemon.
func (r *Remote) Complete(names func(context.Context, *client.Client) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		daemon, err := r.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer daemon.Close()
		ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
		defer cancel()
		return names(ctx, daemon), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteHandlers completes the first argument with the daemon's handlers.
func (r *Remote) CompleteHandlers(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return r.Complete(handlerNames)(c, args, word)
}

func handlerNames(ctx context.Context, daemon *client.Client) (names []string) {
	resp, _ := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	for _, h := range resp.GetHandlers() {
		names = append(names, h.GetName()+"\t"+StateWord(h.GetState()))
	}
	return names
}

// HandlerFlag adds --handler, completed with the daemon's handlers.
func (r *Remote) HandlerFlag(c *cobra.Command, handler *string, usage string) {
	c.Flags().StringVar(handler, "handler", "", usage)
	if err := c.RegisterFlagCompletionFunc("handler", r.Complete(handlerNames)); err != nil {
		panic("berth: " + err.Error()) // cannot happen: the flag exists and had no completion
	}
}

// Wide reports whether all columns are shown.
func (r *Remote) Wide() bool { return r.Output == "wide" }

// Print writes a message of the API as JSON or YAML, or calls table.
func (r *Remote) Print(w io.Writer, m proto.Message, table func(io.Writer) error) error {
	if r.Output != "json" && r.Output != "yaml" {
		return table(w)
	}
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	// protojson varies its white space on purpose; the output for scripts must not vary.
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return output.Encode(w, r.Output, v, nil)
}
