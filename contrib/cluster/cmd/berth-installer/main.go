// Command berth-installer installs berth beside the CRI daemon of a node, switches the kubelet to
// berth, and undoes both. A DaemonSet or an operator runs it. This package parses flags and queries
// the cluster; pkg/installer changes the node.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/log"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/contrib/cluster/pkg/installer"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/pkg/nodefs"
)

// version is set by the build.
var version = "0.0.0-dev"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := newRoot().ExecuteContext(ctx)
	cancel()
	os.Exit(commandline.Report(os.Stderr, "berth-installer:", err))
}

type values struct {
	// State is "installed" or "removed".
	State string `json:"state"`
	installer.Wanted
}

const (
	installed = "installed"
	removed   = "removed"
)

type settings struct {
	root, payload, values string
	node, kubeconfig      string
	readyFile             string
}

func newRoot() *cobra.Command {
	s := &settings{}
	root := &cobra.Command{
		Use:   "berth-installer",
		Short: "Install berth beside a node's CRI daemon, and switch the kubelet to it",
		Long: "Install berth beside a node's CRI daemon, or restore the node's prior state. After an\n" +
			"installation, berth-installer switches the kubelet to berth if \"berth doctor\" finds no\n" +
			"failure. If a run is interrupted, the next run completes it.\n\n" +
			"Exit status: 0 on success, and if SIGTERM ends \"run\"; 2 if the command line or\n" +
			"the values file is wrong; 1 for any other failure.",
		Example:       "  berth-installer install\n  berth-installer uninstall --root /host",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.PersistentFlags().StringVar(&s.root, "root", "/", "where the node's root `directory` is mounted")
	root.PersistentFlags().StringVar(&s.payload, "payload", "/usr/share/berth", "the `directory` with the programs and the unit")
	root.PersistentFlags().StringVar(&s.readyFile, "ready-file", "/run/berth-installer/ready", "the `file` that exists while the node is up to date")
	root.AddCommand(s.runCommand(), s.installCommand(), s.uninstallCommand(), s.readyCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	commandline.Check(root)
	return root
}

func (s *settings) runCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "run",
		Short: "Reconcile this node with the values file (in a pod of a DaemonSet)",
		Long: `Reconcile this node with the values file, and run until SIGTERM. After a failure, the
pod is not ready, and the DaemonSet's rollout stops. Then correct the cause, and delete
the pod or change the values.`,
		Example: "  berth-installer run --root /host --node worker-1",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return s.run(c.Context()) },
	}
	c.Flags().StringVar(&s.values, "values", "/etc/berth-installer/values.json", "the `file` with the values")
	c.Flags().StringVar(&s.kubeconfig, "kubeconfig", "", "the kubeconfig `file`; empty: the pod's service account")
	c.Flags().StringVar(&s.node, "node", os.Getenv("NODE_NAME"), "the `name` of the node")
	return c
}

func (s *settings) installCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:     "install",
		Short:   "Install on this node once, without a cluster",
		Example: "  berth-installer install\n  berth-installer install --root /host --values values.json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := values{State: installed, Wanted: installer.Wanted{Version: version, Kubelet: true}}
			if file != "" {
				var err error
				if v, err = readFile(file); err != nil {
					return err
				}
			}
			if v.State != installed {
				return commandline.Wrong(fmt.Errorf("--values %s: state is %q; use \"berth-installer uninstall\"", file, v.State))
			}
			if _, err := os.Stat(filepath.Join(s.payload, "bin/berth")); err != nil {
				return commandline.Wrong(fmt.Errorf("--payload %s: %w", s.payload, err))
			}
			i, err := s.installer(alone{s.root})
			if err != nil {
				return err
			}
			if err := i.Install(c.Context(), v.Wanted); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "berth %s is installed; its programs are in %s\n", version, installer.Programs)
			return err
		},
	}
	c.Flags().StringVar(&file, "values", "", "the `file` with the values, as in the chart's ConfigMap; without a file, switch the kubelet to berth and install no runtimes")
	return c
}

func (s *settings) uninstallCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "uninstall",
		Short:   "Restore this node's prior state once, without a cluster",
		Example: "  berth-installer uninstall --root /host",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, err := s.installer(alone{s.root})
			if err != nil {
				return err
			}
			if err := i.Uninstall(c.Context()); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "this node's prior state is restored")
			return err
		},
	}
}

func (s *settings) readyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ready",
		Short:   "Check whether \"berth-installer run\" brought the node up to date (its readiness probe)",
		Example: "  berth-installer ready",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stat(s.readyFile)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the node is not up to date: \"berth-installer run\" has not written %s; see its log", s.readyFile)
			}
			return err
		},
	}
}

func (s *settings) installer(c installer.Cluster) (*installer.Installer, error) {
	// Every node has this directory; it contains the installer's state.
	const state = "var/lib"
	if info, err := os.Stat(nodefs.Root(s.root).Resolved(state)); err != nil || !info.IsDir() {
		return nil, commandline.Wrong(fmt.Errorf("--root %s is not the root directory of a node: it has no directory /%s", s.root, state))
	}
	return installer.New(installer.Installer{
		Root: s.root, Payload: s.payload, Self: "/proc/self/exe", Host: installer.Chroot{Root: s.root}, Cluster: c, Backend: installer.CRI{Root: s.root},
	}), nil
}

func readFile(path string) (values, error) {
	f, err := os.Open(path)
	if err != nil {
		return values{}, commandline.Wrong(fmt.Errorf("--values: %w", err))
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return v, commandline.Wrong(fmt.Errorf("--values %s: %w", path, err))
	}
	return v, nil
}

// read parses the values. An unknown key is an error.
func read(from io.Reader) (values, error) {
	var v values
	d := json.NewDecoder(from)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, fmt.Errorf("read the values: %w", err)
	}
	if v.State != installed && v.State != removed {
		return v, fmt.Errorf("state %q is not %s or %s", v.State, installed, removed)
	}
	v.Version = version
	if v.State == removed {
		return v, nil // invalid values must not block a removal
	}
	return v, v.Validate()
}

func (s *settings) run(ctx context.Context) error {
	if s.node == "" {
		return commandline.Wrong(errors.New("set --node or NODE_NAME"))
	}
	os.Remove(s.readyFile)
	v, err := readFile(s.values)
	if err != nil {
		return err
	}
	c, err := newCluster(s.kubeconfig, s.root, s.node)
	if err != nil {
		return commandline.Wrong(err)
	}
	i, err := s.installer(c)
	if err != nil {
		return err
	}
	ctx = log.WithLogger(ctx, log.L.WithField("node", s.node))
	if err := reconcile(ctx, i, v); ctx.Err() != nil {
		return nil
	} else if err != nil {
		log.G(ctx).WithError(err).Error("Failed to bring the node up to date. Correct the reason, and delete this pod to try again")
	} else {
		if err := os.MkdirAll(filepath.Dir(s.readyFile), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(s.readyFile, nil, 0o644); err != nil {
			return err
		}
		log.G(ctx).WithField("state", v.State).Info("Node is up to date")
	}
	<-ctx.Done()
	return nil
}

// reconcile retries while pods block a change.
func reconcile(ctx context.Context, i *installer.Installer, v values) error {
	return wait.PollUntilContextCancel(ctx, 15*time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		if v.State == removed {
			err = i.Uninstall(ctx)
		} else {
			err = i.Install(ctx, v.Wanted)
		}
		if errors.Is(err, installer.ErrPods) {
			log.G(ctx).WithError(err).Warn("Waiting for pods")
			return false, nil
		}
		return true, err
	})
}
