package checkpoints

import (
	"context"
	"os/signal"
	"path/filepath"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/artifact"
)

// defaultHostsDir is the hosts directory of the default configuration.
const defaultHostsDir = "/etc/berth/hosts.d"

// carrier holds the flags of the commands that push and pull checkpoints.
type carrier struct {
	artifact.Registry

	credentials, form string
}

func (k *carrier) flags(c *cobra.Command) {
	output.Flag(c, &k.form, output.Forms...)
	k.registryFlags(c)
}

func (k *carrier) registryFlags(c *cobra.Command) {
	c.Flags().StringVar(&k.HostsDir, "hosts-dir", defaultHostsDir, "`directory` of the registries' hosts.toml files")
	c.Flags().BoolVar(&k.PlainHTTP, "plain-http", false, "connect to the registry without TLS")
	c.Flags().StringVar(&k.credentials, "creds-file", "", "`path` of a file with user:password for the registry; - is standard input")
}

// carry calls f and shows the progress. An interrupt cancels f.
func (k *carrier) carry(c *cobra.Command, f func(ctx context.Context, registry artifact.Registry) error) error {
	auth, err := cli.ReadCredentials(k.credentials, c.InOrStdin())
	if err != nil {
		return commandline.Misused(c, err)
	}
	k.User, k.Secret = auth.GetUsername(), auth.GetPassword()
	shown := cli.NewProgress(c.ErrOrStderr())
	defer shown.End()
	k.Progress = func(name string, bytes int64) { shown.Step("%s, %s", name, cli.Size(bytes)) }
	// The resolver logs errors that it also returns.
	silent := log.WithLogger(c.Context(), logrus.NewEntry(&logrus.Logger{}))
	ctx, stop := signal.NotifyContext(silent, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return f(ctx, k.Registry)
}

type pushedCheckpoint struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

func checkpointPushCommand() *cobra.Command {
	k := &carrier{}
	c := &cobra.Command{
		Use:   "push DIR NAME",
		Short: "Push a checkpoint to a registry",
		Long: `Push a checkpoint to a registry, as an OCI artifact. The checkpoint contains every
secret that the pod had in memory: restrict access to the repository.`,
		Example: "  berth checkpoint push /var/lib/checkpoints/notebook registry.example/team/notebook:warm",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return k.carry(c, func(ctx context.Context, registry artifact.Registry) error {
				digest, err := artifact.Push(ctx, args[0], args[1], registry)
				if err != nil {
					return err
				}
				return output.Encode(c.OutOrStdout(), k.form, pushedCheckpoint{args[1], digest.String()}, output.Line("%s %s", args[1], digest))
			})
		},
	}
	k.flags(c)
	return c
}

func checkpointPullCommand() *cobra.Command {
	k := &carrier{}
	c := &cobra.Command{
		Use:     "pull NAME DIR",
		Short:   "Pull a checkpoint from a registry",
		Long:    `Pull a checkpoint into a new directory; nothing is left there on failure.`,
		Example: "  berth checkpoint pull registry.example/team/notebook:warm /var/lib/checkpoints/notebook",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return k.carry(c, func(ctx context.Context, registry artifact.Registry) error {
				dir, err := filepath.Abs(args[1])
				if err != nil {
					return err
				}
				m, err := artifact.Pull(ctx, args[0], dir, registry)
				if err != nil {
					return err
				}
				l, err := listed(dir, m)
				if err != nil {
					return err
				}
				return output.Encode(c.OutOrStdout(), k.form, l, output.Line("%s: %s, of pod %s/%s", dir, cli.Size(l.Size), l.Namespace, l.Name))
			})
		},
	}
	k.flags(c)
	return c
}
