package capacity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/containerd/log"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	// workers patch nodes in parallel, because one event may change thousands of nodes.
	workers = 16
	// requestTimeout bounds the requests for a node, so that hanging ones do not block other nodes.
	requestTimeout = 5 * time.Second
	// resync is the interval of checks without an event.
	resync = 10 * time.Minute
	// byNode is the name of the pods' index.
	byNode = "node"
	// firstRetry and lastRetry bound the delay before a failed patch is retried.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// changeStep is the pause for a node after a change: another controller that sets other values
	// would otherwise cause hundreds of patches in a second.
	changeStep = 100 * time.Millisecond
	// syncTimeout bounds the wait for the first lists, which are slow with many pods.
	syncTimeout = 5 * time.Minute
)

type controller struct {
	client   kubernetes.Interface
	counting Counting
	nodes    cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	classes  cache.SharedIndexInformer
	due      workqueue.TypedRateLimitingInterface[string] // node names
	metrics  *Metrics
}

// Run maintains the capacity of all nodes until ctx ends, and returns after the last write. It
// fails if the first lists of nodes, pods and classes do not arrive.
func Run(ctx context.Context, client kubernetes.Interface, counting Counting, m *Metrics) error {
	c := &controller{
		client: client, counting: counting, metrics: m,
		due: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "nodes"}),
	}
	if err := c.watch(); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer c.due.ShutDown()
	ctx, end := context.WithCancel(ctx)
	defer end()
	informers := []cache.SharedIndexInformer{c.nodes, c.pods, c.classes}
	for _, i := range informers {
		// Run does not wait for informers: they write nothing, and may sleep for a minute before
		// their next request.
		go i.RunWithContext(ctx)
	}
	// From incomplete lists, the computed room would be too small.
	first, stop := context.WithTimeout(ctx, syncTimeout)
	defer stop()
	for _, i := range informers {
		cache.WaitForCacheSync(first.Done(), i.HasSynced)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case first.Err() != nil:
		return fmt.Errorf("the API server has not listed all nodes, pods and classes within %s", syncTimeout)
	}
	m.working.Store(true) // never reset: a controller that loses the lease exits
	log.G(ctx).WithField("nodes", len(c.nodes.GetStore().ListKeys())).Info("Keeping the capacity of nodes")
	for range workers {
		running.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

// alive selects unfinished pods.
var alive = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))

// watch creates the informers. Finished pods and pods without a node are not watched.
func (c *controller) watch() error {
	core, node := c.client.CoreV1().RESTClient(), c.client.NodeV1().RESTClient()
	scheduled := fields.AndSelectors(fields.OneTermNotEqualSelector("spec.nodeName", ""), alive)
	c.nodes = cache.NewSharedIndexInformer(c.lists(core, "nodes", fields.Everything()), &corev1.Node{}, resync, nil)
	c.pods = cache.NewSharedIndexInformer(c.lists(core, "pods", scheduled), &corev1.Pod{}, 0, cache.Indexers{
		byNode: func(o any) ([]string, error) {
			if p, is := o.(*Pod); is {
				return []string{p.node}, nil
			}
			return nil, nil
		},
	})
	c.classes = cache.NewSharedIndexInformer(c.lists(node, "runtimeclasses", fields.Everything()), &nodev1.RuntimeClass{}, 0, nil)
	_, err := c.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.metrics.nodes.Inc() },
		DeleteFunc: func(any) { c.metrics.nodes.Dec() },
	})
	_, also := c.nodes.AddEventHandler(changed(func(n *corev1.Node) { c.due.Add(n.Name) }))
	_, more := c.pods.AddEventHandler(changed(func(p *Pod) { c.due.Add(p.node) }))
	_, last := c.classes.AddEventHandler(changed(func(*nodev1.RuntimeClass) {
		for _, name := range c.nodes.GetStore().ListKeys() {
			c.due.Add(name)
		}
	}))
	all := []error{err, also, more, last, c.nodes.SetTransform(slimNode), c.pods.SetTransform(c.counting.slimPod)}
	for _, i := range []cache.SharedIndexInformer{c.nodes, c.pods, c.classes} {
		all = append(all, i.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
			c.metrics.unseen.Store(time.Now().UnixNano())
			log.G(ctx).WithError(err).Warn("Failed to watch nodes, pods or classes; will retry")
		}))
	}
	return errors.Join(all...)
}

func (c *controller) lists(from cache.Getter, what string, which fields.Selector) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(from, what, "", which), c.client)
}

// changed calls do for every added or deleted object, and for both states of an updated one.
func changed[T any](do func(T)) cache.ResourceEventHandler {
	take := func(o any) {
		if gone, is := o.(cache.DeletedFinalStateUnknown); is {
			o = gone.Obj
		}
		if one, is := o.(T); is {
			do(one)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: take, DeleteFunc: take, UpdateFunc: func(was, now any) { take(was); take(now) }}
}

// next processes one node, and reports whether the queue is still open.
func (c *controller) next(ctx context.Context) bool {
	name, over := c.due.Get()
	if over {
		return false
	}
	changed, err := c.keep(ctx, name)
	failed := c.due.NumRequeues(name) > 0
	if err != nil {
		if !failed {
			c.metrics.failing.Inc()
		}
		c.metrics.Failed(err)
		if ctx.Err() == nil {
			log.G(ctx).WithError(err).WithField("node", name).Warn("Failed to set the capacity of a node; will retry")
		}
		c.due.AddRateLimited(name)
	} else {
		if failed {
			c.metrics.failing.Dec()
		}
		c.due.Forget(name)
	}
	if changed {
		time.AfterFunc(changeStep, func() { c.due.Done(name) })
	} else {
		c.due.Done(name)
	}
	return true
}

// keep corrects a node's status, and reports whether it changed it.
func (c *controller) keep(ctx context.Context, name string) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	n, pods, classes, err := c.cached(name)
	if err != nil || n == nil {
		return false, err
	}
	room := roomOf(n, pods, classes)
	if room.lowers(n) {
		// The cache may lack newer pods: a restarted kubelet would end them for lack of capacity.
		if n, pods, classes, err = c.read(ctx, name); err != nil || n == nil {
			return false, err
		}
		room = roomOf(n, pods, classes)
	}
	body := room.patch(n)
	if body == nil {
		return false, nil
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "berth-controller"}, "status")
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("patch nodes/status: %w", err)
	}
	c.metrics.patches.Inc()
	log.G(ctx).WithFields(log.Fields{"node": name, "capacity": maps.Clone(room)}).Info("Updated the capacity of a node")
	return true, nil
}

// cached returns a node, its pods and all classes from the informers; the node is nil if it does
// not exist.
func (c *controller) cached(name string) (*corev1.Node, []*Pod, Classes, error) {
	o, there, err := c.nodes.GetIndexer().GetByKey(name)
	if err != nil || !there {
		return nil, nil, nil, err
	}
	n, is := o.(*corev1.Node)
	if !is {
		return nil, nil, nil, fmt.Errorf("unexpected %T among nodes", o)
	}
	of, err := c.pods.GetIndexer().ByIndex(byNode, name)
	if err != nil {
		return nil, nil, nil, err
	}
	var pods []*Pod
	for _, o := range of {
		if p, is := o.(*Pod); is {
			pods = append(pods, p)
		}
	}
	classes := Classes{}
	for _, o := range c.classes.GetStore().List() {
		if class, is := o.(*nodev1.RuntimeClass); is {
			classes[class.Name] = class.Handler
		}
	}
	return n, pods, classes, nil
}

// read returns the same as cached, from the API server.
func (c *controller) read(ctx context.Context, name string) (*corev1.Node, []*Pod, Classes, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list nodes: %w", err)
	}
	if len(nodes.Items) == 0 {
		return nil, nil, nil, nil
	}
	there, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", name), alive).String(),
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list pods: %w", err)
	}
	var pods []*Pod
	for i := range there.Items {
		pods = append(pods, podOf(&there.Items[i], c.counting))
	}
	list, err := c.client.NodeV1().RuntimeClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list runtimeclasses: %w", err)
	}
	classes := Classes{}
	for i := range list.Items {
		classes[list.Items[i].Name] = list.Items[i].Handler
	}
	return &nodes.Items[0], pods, classes, nil
}
