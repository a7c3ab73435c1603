// Command berth-installer puts berth beside the CRI daemon of a node and moves the kubelet
// to it, as a pod of a DaemonSet or by hand, and undoes both. It translates flags and asks
// the cluster; what is done to a node is in pkg/installer.
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

	"github.com/berth-cri/berth/cmd/internal/commandline"
	"github.com/berth-cri/berth/pkg/installer"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
	"github.com/berth-cri/berth/pkg/printable"
)

// version is set by the build.
var version = "0.0.0-dev"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := newRoot().ExecuteContext(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-installer:", printable.Error(err))
		os.Exit(commandline.Status(err))
	}
}

// values are what a chart or an operator says.
type values struct {
	// State is "installed" or "removed".
	State string `json:"state"`
	installer.Wanted
}

const (
	installed = "installed"
	removed   = "removed"
)

// settings are those of the flags.
type settings struct {
	root, payload, values string
	node, namespace       string
	kubeconfig, readyFile string
}

func newRoot() *cobra.Command {
	s := &settings{}
	root := &cobra.Command{
		Use:   "berth-installer",
		Short: "Put berth beside the CRI daemon of a node, and move the kubelet to it",
		Long: "Put berth beside the CRI daemon of a node, and move the kubelet to it when the doctor\n" +
			"finds no failure; or leave the node as it was before. What was interrupted is finished\n" +
			"or undone by the next run.\n\n" +
			"Exit status: 0 if the node is as wanted, 2 if the command line is wrong, 1 for any\n" +
			"other failure.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.PersistentFlags().StringVar(&s.root, "root", "/", "where the node's root `directory` is mounted")
	root.PersistentFlags().StringVar(&s.payload, "payload", "/usr/share/berth", "the `directory` with the programs and the unit")
	root.PersistentFlags().StringVar(&s.readyFile, "ready-file", "/run/berth-installer/ready", "the `file` that says that the node is as wanted")
	root.AddCommand(s.runCommand(), s.installCommand(), s.uninstallCommand(), s.rescueCommand(), s.readyCommand())
	root.CompletionOptions.DisableDefaultCmd = true // nobody types this often
	commandline.Check(root, commandline.Wrong)
	return root
}

func (s *settings) runCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "run",
		Short: "Make the node as the values say, and stay, as the pod of a DaemonSet",
		Long: `Make the node as the values say, one node of the cluster at a time, and stay until
SIGTERM, which changes nothing. After a failure the pod is not ready, and no other node
begins: correct the reason, and delete the pod or change the values.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c.Context()) },
	}
	c.Flags().StringVar(&s.values, "values", "/etc/berth-installer/values.json", "the `file` with the values")
	c.Flags().StringVar(&s.kubeconfig, "kubeconfig", "", "the `file` with the way to the API server; empty: the pod's service account")
	c.Flags().StringVar(&s.node, "node", os.Getenv("NODE_NAME"), "the `name` of the node")
	c.Flags().StringVar(&s.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "the `namespace` of the lease by which nodes take turns")
	return c
}

func (s *settings) installCommand() *cobra.Command {
	w := installer.Wanted{Kubelet: true}
	var runtimes []string
	c := &cobra.Command{
		Use:   "install",
		Short: "Install on this node, once, without a cluster",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, text := range runtimes {
				r, err := parseRuntime(text)
				if err != nil {
					return commandline.Wrong(fmt.Errorf("--runtime %s: %w", text, err))
				}
				w.Runtimes = append(w.Runtimes, r)
			}
			w.Version = version
			if err := w.Validate(); err != nil {
				return commandline.Wrong(err)
			}
			if _, err := os.Stat(filepath.Join(s.payload, "bin/berth")); err != nil {
				return commandline.Wrong(fmt.Errorf("--payload %s: %w", s.payload, err))
			}
			i, err := s.installer(alone{s.root})
			if err != nil {
				return err
			}
			if err := i.Install(c.Context(), w); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "berth %s is installed; its programs are in %s\n", version, installer.Programs)
			return err
		},
	}
	c.Flags().StringVar(&w.Endpoint, "endpoint", "", "the other CRI daemon's `address`, as unix:///run/crio/crio.sock; empty: the kubelet's")
	c.Flags().BoolVar(&w.Kubelet, "kubelet", true, "move the kubelet to berth")
	c.Flags().StringArrayVar(&runtimes, "runtime", nil, "a `runtime` to bring, as {handler: …, kind: …, version: …, source: …}")
	return c
}

func (s *settings) uninstallCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Leave this node as it was, once, without a cluster",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, err := s.installer(alone{s.root})
			if err != nil {
				return err
			}
			if err := i.Uninstall(c.Context()); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "what this installer did on this node is undone")
			return err
		},
	}
}

func (s *settings) rescueCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rescue",
		Short: "Undo an interrupted change that leaves the kubelet without a runtime, and nothing else",
		Long: `Undo an interrupted change that leaves the kubelet without a runtime, and nothing else: have
the kubelet use what it used before, or berth be what it was last well with. A timer of the
node's runs this during such changes, because no pod could start if they do not end well.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, err := s.installer(alone{s.root})
			if err != nil {
				return err
			}
			return i.Rescue(c.Context())
		},
	}
}

func (s *settings) readyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ready",
		Short: "Exit with 0 if \"berth-installer run\" has made the node as wanted, for its readiness probe",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stat(s.readyFile)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the node is not as wanted, or not yet: \"berth-installer run\" has not written %s; its log says why", s.readyFile)
			}
			return err
		},
	}
}

func (s *settings) installer(c installer.Cluster) (*installer.Installer, error) {
	// Every node has this directory, and in it is the journal.
	const state = "var/lib"
	if info, err := os.Stat(nodefs.Root(s.root).Resolved(state)); err != nil || !info.IsDir() {
		return nil, commandline.Wrong(fmt.Errorf("--root %s is not the root directory of a node: it has no directory /%s", s.root, state))
	}
	return installer.New(installer.Installer{
		Root: s.root, Payload: s.payload, Self: "/proc/self/exe", Host: installer.Chroot{Root: s.root}, Cluster: c, Backend: installer.CRI{Root: s.root},
	})
}

// read returns the values. A key that nobody knows is a mistake.
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
		return v, nil // what is wanted of berth keeps nobody from removing it
	}
	return v, v.Validate()
}

func (s *settings) run(ctx context.Context) error {
	if s.node == "" || s.namespace == "" {
		return commandline.Wrong(errors.New("--node and --namespace are needed, or NODE_NAME and POD_NAMESPACE"))
	}
	os.Remove(s.readyFile)
	f, err := os.Open(s.values)
	if err != nil {
		return commandline.Wrong(fmt.Errorf("--values: %w", err))
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return commandline.Wrong(fmt.Errorf("--values %s: %w", s.values, err))
	}
	c, err := newCluster(s.kubeconfig, s.root, s.node, s.namespace)
	if err != nil {
		return commandline.Wrong(err)
	}
	defer c.stop()
	i, err := s.installer(c)
	if err != nil {
		return err
	}
	ctx = log.WithLogger(ctx, log.L.WithField("node", s.node))
	if err := again(ctx, func() error { return attempt(ctx, i, c, v) }); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		log.G(ctx).WithError(err).Error("Failed to make the node as wanted. Correct the reason, and delete this pod to try again")
	} else {
		if err := os.MkdirAll(filepath.Dir(s.readyFile), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(s.readyFile, nil, 0o644); err != nil {
			return err
		}
		log.G(ctx).WithField("state", v.State).Info("Node is as wanted")
	}
	<-ctx.Done()
	return nil
}

// attempt makes the node as wanted, as long as it is the node's turn.
func attempt(ctx context.Context, i *installer.Installer, c *cluster, v values) error {
	ctx, end := c.follow(ctx)
	defer end(nil)
	err := apply(ctx, i, v)
	if err != nil && errors.Is(context.Cause(ctx), errLost) {
		return errors.Join(errLost, err)
	}
	return err
}

func apply(ctx context.Context, i *installer.Installer, v values) error {
	if v.State == removed {
		return i.Uninstall(ctx)
	}
	return i.Install(ctx, v.Wanted)
}

// again repeats what pods, or another node's turn, keep from being done.
func again(ctx context.Context, f func() error) error {
	const pause = 15 * time.Second
	for {
		err := f()
		switch {
		case errors.Is(err, installer.ErrPods):
			log.G(ctx).WithError(err).Warn("Waiting for pods")
		case errors.Is(err, errLost):
			log.G(ctx).WithError(err).Warn("Waiting for the turn")
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
