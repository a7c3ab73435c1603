package checkpoints

import (
	"cmp"
	"context"
	"errors"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/artifact"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
)

// defaultHostsDir is the hosts directory of the default configuration.
const defaultHostsDir = "/etc/berth/hosts.d"

// carrier holds the flags of the commands that push and pull checkpoints.
type carrier struct {
	artifact.Registry
	cli.Remote

	credentials string
}

func (k *carrier) flags(c *cobra.Command) {
	k.Remote.Flags(c)
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
		Use:   "push CHECKPOINT REFERENCE",
		Short: "Push a checkpoint to a registry",
		Long: `Push a checkpoint to a registry, as an OCI artifact. The checkpoint contains every
secret that the pod had in memory: restrict access to the repository.`,
		Example: "  berth checkpoint push shop/notebook registry.example/team/notebook:warm",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: completeNames(&k.Remote),
		RunE: func(c *cobra.Command, args []string) error {
			return k.carry(c, func(ctx context.Context, registry artifact.Registry) error {
				dir, err := locate(&k.Remote, c, args[0])
				if err != nil {
					return err
				}
				digest, err := artifact.Push(ctx, dir, args[1], registry)
				if err != nil {
					return err
				}
				return output.Encode(c.OutOrStdout(), k.Output, pushedCheckpoint{args[1], digest.String()}, output.Line("%s %s", args[1], digest))
			})
		},
	}
	k.flags(c)
	return c
}

func checkpointPullCommand() *cobra.Command {
	k, as := &carrier{}, ""
	c := &cobra.Command{
		Use:   "pull REFERENCE [DIR]",
		Short: "Pull a checkpoint from a registry",
		Long: `Pull a checkpoint into the new directory DIR, or with --as NAME into a new directory in
pod-checkpoints of the running daemon. A failed pull leaves nothing there.
If another pull takes the name meanwhile, the checkpoint stays without a name.`,
		Example: "  berth checkpoint pull registry.example/team/notebook:warm --as shop/notebook\n  berth checkpoint pull registry.example/team/notebook:warm /var/lib/checkpoints/notebook",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if (as == "") == (len(args) == 1) {
				return commandline.Misused(c, errors.New("give either DIR or --as"))
			}
			return k.carry(c, func(ctx context.Context, registry artifact.Registry) error {
				dir, err := filepath.Abs(args[len(args)-1])
				if as != "" {
					dir, err = daemonsDirectory(&k.Remote, c)
				}
				if err == nil && as != "" {
					dir, err = directory.Path(dir, "pulled", as, as, false, time.Now())
				}
				if err != nil {
					return err
				}
				m, err := artifact.Pull(ctx, args[0], dir, registry)
				if err != nil {
					return err
				}
				l, err := listed(dir, m)
				if err == nil && as != "" {
					l.Name, err = as, directory.Name(dir, as, false)
				}
				if err != nil {
					return err
				}
				return output.Encode(c.OutOrStdout(), k.Output, l, output.Line("%s: %s, of pod %s/%s", cmp.Or(as, dir), cli.Size(l.Size), l.Namespace, l.Pod))
			})
		},
	}
	k.flags(c)
	c.Flags().StringVar(&as, "as", "", "`name` of the checkpoint on this node, such as shop/notebook")
	return c
}
