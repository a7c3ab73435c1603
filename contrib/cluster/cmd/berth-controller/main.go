// Command berth-controller publishes to a cluster's scheduler how many pods of each handler its
// nodes have room for. Several controllers may run: one is the leader, the others wait.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/berth-cri/berth/contrib/cluster/pkg/capacity"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/pkg/observe/scrape"
)

// version is set by the build.
var version = "0.0.0-dev"

const (
	// lease is the name of the leader's Lease. All controllers of a cluster use the same namespace:
	// with two leases, two would lead.
	lease, leaseNamespace = "berth-controller", "berth-system"
	// leaseDuration is the time from the last renewal to a new leader. The old leader stops
	// earlier: its renewal, the next failed one and the release take at most renewDeadline each.
	leaseDuration = 15 * time.Second
	renewDeadline = 4 * time.Second
	retryPeriod   = 2 * time.Second
	// healthTolerance is how long the leader's lease may be expired before /healthz fails.
	healthTolerance = 5 * time.Second
)

// errLost ends a leader that cannot prove its lease.
var errLost = errors.New("lost the lease " + lease + ": the API server did not answer, or another controller took it")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	os.Exit(commandline.Report(os.Stderr, "berth-controller:", err))
}

func newCommand() *cobra.Command {
	var kubeconfig, namespace, counting, address string
	c := &cobra.Command{
		Use:   "berth-controller",
		Short: "Publish how many pods of each handler the nodes have room for",
		Long: `Set how many pods of each handler every node of a cluster takes. The number is the
node's capacity of the resource feature.node.kubernetes.io/handler.NAME.pods. If a
handler accepts pods, the node has room up to the limit of the handler's pods. If a
handler accepts no pods, the node has room only for the pods that it already has.

The handlers are the handlers of RuntimeClasses. Labels of the nodes show the states of
the handlers.

Deploy berth-controller with contrib/kubernetes/capacity.yaml. If several controllers
run, only the controller with the lease works.

Exit status: 0 after SIGTERM, 2 if the command line or kubeconfig is wrong, 1 after any
other failure.`,
		Example:       "  berth-controller\n  berth-controller --kubeconfig admin.kubeconfig",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(c *cobra.Command, _ []string) error {
			return run(c.Context(), kubeconfig, namespace, address, capacity.Counting(counting))
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default $KUBECONFIG, or the service account of the pod)")
	c.Flags().StringVar(&namespace, "namespace", leaseNamespace, "`NAMESPACE` of the lease; the same for all controllers of a cluster")
	c.Flags().StringVar(&counting, "count-overhead", string(capacity.ByStatus), "how the cluster's scheduler counts a running pod's overhead: by-status (twice, as in Kubernetes 1.36 and 1.37) or once (with the fix of kubernetes/kubernetes#139627)")
	c.Flags().StringVar(&address, "address", ":8080", "`ADDRESS` of /metrics, /healthz and /readyz; empty: none")
	commandline.Check(c)
	return c
}

func run(ctx context.Context, kubeconfig, namespace, address string, counting capacity.Counting) error {
	if counting != capacity.ByStatus && counting != capacity.Once {
		return commandline.Wrong(fmt.Errorf("--count-overhead=%s must be %s or %s", counting, capacity.ByStatus, capacity.Once))
	}
	if namespace == "" {
		return commandline.Wrong(errors.New("--namespace is empty"))
	}
	if errs := validation.IsDNS1123Label(namespace); len(errs) > 0 {
		return commandline.Wrong(fmt.Errorf("--namespace: %q is not a name of a namespace: %s", namespace, strings.Join(errs, "; ")))
	}
	config, err := connect(kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	registry, live := scrape.NewRegistry(version, ""), leaderelection.NewLeaderHealthzAdaptor(healthTolerance)
	m := capacity.NewMetrics(registry)
	var ready atomic.Bool
	closed, err := serve(ctx, address, registry, live, ready.Load)
	if err != nil {
		return err
	}
	defer closed()
	return lead(ctx, client, namespace, live, func() { ready.Store(true) }, func(ctx context.Context) error { return capacity.Run(ctx, client, counting, m) })
}

func connect(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		var file *fs.PathError
		switch {
		case clientcmd.IsEmptyConfig(err):
			err = errors.New("no API server found: run berth-controller in a pod, or use --kubeconfig")
		case errors.As(err, &file) && file.Path == kubeconfig:
			err = fmt.Errorf("--kubeconfig %s: %w", kubeconfig, file.Err)
		}
		return nil, commandline.Wrong(err)
	}
	config.UserAgent = "berth-controller/" + version
	// No limit: the server limits its clients.
	config.QPS = -1
	return config, nil
}

// lead runs do while this process holds the lease, and calls seen for each leader that it observes.
func lead(ctx context.Context, client kubernetes.Interface, namespace string, watch *leaderelection.HealthzAdaptor, seen func(), do func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	me := host + "_" + rand.Text()
	holding, release := context.WithCancelCause(context.WithoutCancel(ctx))
	defer release(nil)
	// When ctx ends, the lease is released only after do has returned.
	working := make(chan struct{}, 1)
	defer context.AfterFunc(ctx, func() {
		working <- struct{}{}
		release(nil)
		<-working
	})()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &ownLock{Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: lease, Namespace: namespace},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: me},
		}},
		Name: lease, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				working <- struct{}{}
				defer func() { <-working }()
				leading, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				log.G(ctx).WithField("lease", namespace+"/"+lease).Info("Took the lease")
				if err := do(leading); err != nil {
					release(err)
				}
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(who string) {
				seen()
				if who != me {
					log.G(ctx).WithField("leader", who).Info("Waiting while another controller works")
				}
			},
		},
	})
	if err != nil {
		return err
	}
	watch.SetLeaderElection(elector) // otherwise only RunOrDie does this
	elector.Run(holding)
	switch {
	case ctx.Err() != nil:
		return nil
	case holding.Err() != nil:
		return context.Cause(holding)
	}
	return errLost
}

// ownLock refuses to release a lease that another controller has taken. client-go reads the lease
// before the release, but does not compare the holder.
type ownLock struct {
	resourcelock.Interface
	holder string
}

func (l *ownLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l *ownLock) Update(ctx context.Context, to resourcelock.LeaderElectionRecord) error {
	if to.HolderIdentity == "" && l.holder != l.Identity() {
		return errLost
	}
	return l.Interface.Update(ctx, to)
}

// closeGrace is how long the shutdown waits for open HTTP requests.
const closeGrace = time.Second

// serve serves metrics, readiness and liveness at an address; with no address it does nothing. A
// leader that has not renewed its lease is not live. A controller that waits for the lease is
// ready: otherwise an upgrade would wait for it to lead.
func serve(ctx context.Context, address string, registry prometheus.Gatherer, lease *leaderelection.HealthzAdaptor, ready func() bool) (closed func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, commandline.Wrong(fmt.Errorf("--address=%s: %w; write [HOST]:PORT", address, err))
	}
	endpoint := scrape.Serve(ctx, l, registry,
		scrape.Page{Path: "/readyz", Handler: func(w http.ResponseWriter, _ *http.Request) {
			if !ready() {
				http.Error(w, "no holder of the lease has been observed yet", http.StatusServiceUnavailable)
				return
			}
		}},
		scrape.Page{Path: "/healthz", Handler: func(w http.ResponseWriter, r *http.Request) {
			if err := lease.Check(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}})
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		_ = endpoint.Close(ctx) // remaining requests are cut off
	}, nil
}
