package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-cri/berth/cmd/internal/screen"
	"github.com/berth-cri/berth/pkg/cluster"
)

const (
	// topEvery is the time between looks at the cluster, and leastEvery the shortest.
	topEvery, leastEvery = 10 * time.Second, time.Second
	// topTimeout bounds one look, topRequest each of its requests, so that an API server that
	// hangs is noticed, and metricsTimeout the one that asks a kubelet.
	topTimeout, topRequest, metricsTimeout = time.Minute, 10 * time.Second, 5 * time.Second
	// topWindow is how far back p95 looks, or to the look before, if that is longer ago.
	topWindow = 10 * time.Minute
	// Looks that are kept are so far apart: those that rates may need, and those before.
	recentStep, olderStep = 10 * time.Second, time.Minute
	// kubeletsAtOnce is how many kubelets are asked at the same time.
	kubeletsAtOnce = 16
	// mostMetrics is how much a kubelet may send, uncompressed. It has half a MiB.
	mostMetrics = 8 << 20
	// longestReason bounds what is said of a kubelet that has not answered.
	longestReason = 300
)

func (p *nodeCommands) topCommand() *cobra.Command {
	var selector string
	every := topEvery
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what the handlers of the cluster are doing, and keep it up to date",
		Long: `Show on the whole terminal which handlers the cluster has, on how many nodes, how many
pods they have, how many sandboxes start in a minute, and p95 of the CRI's calls for
pods, by handler and by node, until q is pressed. The numbers of starts are those of the
kubelets, which are asked through the API server: that needs the verb "get" on
"nodes/proxy", and without it the rest is shown. While the API server does not respond,
the last that is known stays, and the command goes on trying.

A pipe or a file gets one page as text, in which times are those since the kubelets'
starts.`,
		Example: "  kubectl berth top\n  kubectl berth top -l pool=sandboxes --every 30s\n  kubectl berth top | cat",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			by, err := labels.Parse(selector)
			switch {
			case err != nil:
				return wrong(fmt.Errorf("--selector: %w", err))
			case every < leastEvery:
				return misused(c, fmt.Errorf("--every is less than %s", leastEvery))
			}
			s, err := p.connectWithin(ownTimeout(c))
			if err != nil {
				return err
			}
			source := s.topSource(by, every)
			if screen.Terminal(p.In, p.Out) {
				return source.Show(c.Context(), p.In, p.Out)
			}
			return source.Print(c.Context(), p.Out, 1)
		},
	}
	c.Flags().StringVarP(&selector, "selector", "l", "", "only nodes with these `LABELS`, and their pods")
	c.Flags().DurationVar(&every, "every", topEvery, "`time` between looks")
	return c
}

// ownTimeout is the bound of each request, or 0 if --request-timeout is given: its 0 is no bound,
// and also what it is if nobody gives it.
func ownTimeout(c *cobra.Command) time.Duration {
	if c.Flags().Changed("request-timeout") {
		return 0
	}
	return topRequest
}

// topSample is what the cluster says at a time.
type topSample struct {
	at   time.Time
	host string
	// nodes are those that are shown, of all that there are. Only the last sample has them, and
	// pods.
	nodes []cluster.Node
	all   int
	pods  map[onNode]int
	// counts are by node, and so is why some are missing.
	counts    map[string]cluster.Counts
	uncounted map[string]string
}

// onNode is what is told of pods that have not ended.
type onNode struct {
	node, handler string
	pending       bool
}

// placed is what is read of one.
type placed struct {
	node, class      string
	classed, pending bool
}

func (s *server) topSource(by labels.Selector, every time.Duration) screen.Source[topSample] {
	return screen.Source[topSample]{
		Name: "the API server", Every: every, Timeout: topTimeout, Keep: thinned,
		Sample: func(ctx context.Context) (topSample, error) { return s.topSample(ctx, by) },
		Final: func(err error) bool {
			return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		},
		View: topPage,
	}
}

// thinned is what is kept of samples: of those before the last one only what kubelets had
// counted, the oldest of the window and, of the others, as many as are needed. A cluster may
// be large, and be looked at every second. Pure.
func thinned(samples []topSample) []topSample {
	last := len(samples) - 1
	var kept []topSample
	for i, s := range samples {
		age := samples[last].at.Sub(s.at)
		step := olderStep
		if age < time.Minute+recentStep {
			step = recentStep
		}
		switch {
		case i == last:
			return append(kept, s)
		case age > topWindow && i < last-1, len(kept) > 0 && s.at.Sub(kept[len(kept)-1].at) < step:
			continue
		}
		kept = append(kept, topSample{at: s.at, counts: s.counts})
	}
	return kept
}

func (s *server) topSample(ctx context.Context, by labels.Selector) (topSample, error) {
	state, pods := &cluster.State{}, map[placed]int{}
	if err := each(append(s.reads(ctx, state), func() error {
		return listEach(ctx, s, "pods", s.core.Pods("").List, metav1.ListOptions{FieldSelector: fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()},
			func() { clear(pods) }, func(p *corev1.Pod) {
				one := placed{node: strings.Clone(p.Spec.NodeName), pending: p.Status.Phase == corev1.PodPending}
				if class := p.Spec.RuntimeClassName; class != nil {
					one.class, one.classed = strings.Clone(*class), true
				}
				pods[one]++
			})
	})...); err != nil {
		return topSample{}, err
	}
	sample := topSample{at: time.Now(), host: s.host, all: len(state.Nodes), pods: map[onNode]int{}, counts: map[string]cluster.Counts{}, uncounted: map[string]string{}}
	shown := map[string]bool{"": by.Empty()} // pods without a node are of the whole cluster
	for i, n := range cluster.Nodes(state) {
		if by.Matches(labels.Set(state.Nodes[i].Labels)) {
			sample.nodes, shown[n.Name] = append(sample.nodes, n), true
		}
	}
	handlers := map[string]string{}
	for _, c := range state.Classes {
		handlers[c.Name] = c.Handler
	}
	for p, n := range pods {
		handler := handlers[p.class]
		if p.classed && handler == "" || !shown[p.node] {
			continue // its class is gone, and so is what is known of it; or it is not asked for
		}
		sample.pods[onNode{p.node, handler, p.pending}] += n
	}
	s.count(ctx, &sample)
	return sample, nil
}

// count asks the kubelets for what they have counted. One that does not answer costs the
// others nothing but its time.
func (s *server) count(ctx context.Context, sample *topSample) {
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(kubeletsAtOnce)
	for _, n := range sample.nodes {
		all.Go(func() error {
			counts, err := s.kubelet(ctx, n.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				sample.uncounted[n.Name] = clip(err.Error())
				return nil
			}
			sample.counts[n.Name] = counts
			return nil
		})
	}
	all.Wait() //nolint:errcheck // nobody returns one
}

// clip bounds what a kubelet makes others read.
func clip(text string) string {
	if all := []rune(text); len(all) > longestReason {
		return string(all[:longestReason]) + "…"
	}
	return text
}

// kubelet reads the metrics of a node's kubelet.
func (s *server) kubelet(ctx context.Context, node string) (cluster.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	answer := s.core.RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("metrics").Do(ctx)
	text, _ := answer.Raw() // without what the API server says of an error
	switch err := answer.Error(); {
	case len(text) > mostMetrics:
		return cluster.Counts{}, fmt.Errorf("it sends more than %d MiB", mostMetrics>>20)
	case err != nil:
		return cluster.Counts{}, s.explain("get", "nodes/proxy", err)
	}
	return cluster.ReadCounts(bytes.NewReader(text))
}

// boundMetrics ends what a kubelet sends, as metrics or as an error, soon after it is too
// much: a single node must not use up the memory of whoever looks at the cluster.
func boundMetrics(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/proxy/metrics") {
			answer.Body = body{io.LimitReader(answer.Body, mostMetrics+1), answer.Body}
		}
		return answer, err
	})
}

type body struct {
	io.Reader
	io.Closer
}
