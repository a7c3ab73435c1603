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
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
)

const (
	// workers patch nodes at the same time: some thousand in the seconds after a mass event.
	workers = 16
	// patchTimeout bounds each, so that some which hang do not keep the others from it.
	patchTimeout = 5 * time.Second
	// resync is when nodes are looked at again without an event.
	resync = 10 * time.Minute
	// byNode is the index of pods.
	byNode = "node"
	// firstRetry and lastRetry bound how soon a patch that failed is tried again.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// glance is how often is asked whether what there is is still seen.
	glance = time.Second
)

// controller keeps the status of nodes.
type controller struct {
	client   kubernetes.Interface
	counting Counting
	nodes    cache.SharedIndexInformer
	pods     cache.SharedIndexInformer
	classes  cache.SharedIndexInformer
	sights   []*sight
	due      workqueue.TypedRateLimitingInterface[string] // names of nodes
	metrics  *Metrics
	failing  failing
	pace     pace
}

// failing are the names of nodes whose capacity could not be set.
type failing struct {
	mu    sync.Mutex
	names map[string]bool
}

// note says whether a node is among them now, and returns how many there are.
func (f *failing) note(name string, is bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is {
		f.names[name] = true
	} else {
		delete(f.names, name)
	}
	return len(f.names)
}

// Run keeps the capacity of all nodes until ctx is over, and returns when nothing is
// written any more. Nobody else may do so meanwhile. It fails if it sees nothing of
// nodes, pods or classes for some time.
func Run(ctx context.Context, client kubernetes.Interface, counting Counting, m *Metrics) error {
	c := &controller{
		client: client, counting: counting, metrics: m, failing: failing{names: map[string]bool{}},
		pace: pace{nodes: map[string]flowcontrol.RateLimiter{}},
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
		// Not waited for: they write nothing, and may sleep for a minute before they ask again.
		go i.RunWithContext(ctx)
	}
	// With some of it only, less room would be seen than there is.
	if err := c.synced(ctx, informers); err != nil || ctx.Err() != nil {
		return err
	}
	m.leading.Set(1) // for good: a controller that loses the lease ends
	log.G(ctx).WithField("nodes", len(c.nodes.GetStore().ListKeys())).Info("Keeping the capacity of nodes")
	for range workers {
		running.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	return c.look(ctx, true)
}

// synced waits for the first lists.
func (c *controller) synced(ctx context.Context, informers []cache.SharedIndexInformer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		for _, i := range informers {
			cache.WaitForCacheSync(ctx.Done(), i.HasSynced)
		}
	}()
	return c.look(ctx, false)
}

// look returns when ctx is over, or too little was seen for too long. Before the first lists
// have come, nothing is seen.
func (c *controller) look(ctx context.Context, listed bool) error {
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		now := time.Now()
		sees := 0.0
		if listed && !blind(c.sights, now) {
			sees = 1
		}
		c.metrics.watching.Set(sees)
		if err := lost(c.sights, now); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watch makes the informers. Pods that ended and those without a node are not watched.
func (c *controller) watch() error {
	core, node := c.client.CoreV1().RESTClient(), c.client.NodeV1().RESTClient()
	alive := fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	c.nodes = cache.NewSharedIndexInformer(c.seeing(core, "nodes", fields.Everything()), &corev1.Node{}, resync, nil)
	c.pods = cache.NewSharedIndexInformer(c.seeing(core, "pods", alive), &corev1.Pod{}, 0, cache.Indexers{
		byNode: func(o any) ([]string, error) {
			if p, is := o.(*Pod); is {
				return []string{p.node}, nil
			}
			return nil, nil
		},
	})
	c.classes = cache.NewSharedIndexInformer(c.seeing(node, "runtimeclasses", fields.Everything()), &nodev1.RuntimeClass{}, 0, nil)
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
	return errors.Join(err, also, more, last, c.nodes.SetTransform(slimNode), c.pods.SetTransform(c.counting.slimPod))
}

// seeing lists and watches some objects, and knows whether it can.
func (c *controller) seeing(from cache.Getter, what string, which fields.Selector) cache.ListerWatcher {
	s := &sight{what: what}
	c.sights = append(c.sights, s)
	return cache.ToListWatcherWithWatchListSemantics(s.over(cache.NewListWatchFromClient(from, what, "", which)), c.client)
}

// changed calls do with all that comes, changes or goes.
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

// next takes a node and keeps it, and says whether there will be more.
func (c *controller) next(ctx context.Context) bool {
	name, over := c.due.Get()
	if over {
		return false
	}
	defer c.due.Done(name)
	if err := c.keep(ctx, name); err != nil {
		if ctx.Err() == nil {
			log.G(ctx).WithError(err).WithField("node", name).Warn("Failed to set the capacity of a node; will retry")
		}
		c.metrics.failing.Set(float64(c.failing.note(name, true)))
		c.due.AddRateLimited(name)
		return true
	}
	c.metrics.failing.Set(float64(c.failing.note(name, false)))
	c.due.Forget(name)
	return true
}

// keep makes a node's status true.
func (c *controller) keep(ctx context.Context, name string) error {
	o, there, err := c.nodes.GetIndexer().GetByKey(name)
	if err != nil || !there {
		c.pace.forget(name)
		return err
	}
	n, is := o.(*corev1.Node)
	if !is {
		return fmt.Errorf("unexpected %T among nodes", o)
	}
	of, err := c.pods.GetIndexer().ByIndex(byNode, name)
	if err != nil {
		return err
	}
	var pods []*Pod
	for _, o := range of {
		if p, is := o.(*Pod); is {
			pods = append(pods, p)
		}
	}
	room := RoomOf(n, pods, c.handlers())
	// Pods that came since are not known to who sees none: they would be ended for it.
	body, held := room.patch(n, !blind(c.sights, time.Now()))
	if held {
		c.due.AddAfter(name, glance)
	}
	if body == nil {
		return nil
	}
	if !c.pace.takes(name) {
		c.due.AddAfter(name, changeStep)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "berth-controller"}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.metrics.Failed(err)
		return fmt.Errorf("patch nodes/status: %w", err)
	}
	c.metrics.patches.Inc()
	log.G(ctx).WithFields(log.Fields{"node": name, "capacity": maps.Clone(room)}).Info("Updated the capacity of a node")
	return nil
}

func (c *controller) handlers() Classes {
	all := Classes{}
	for _, o := range c.classes.GetStore().List() {
		if class, is := o.(*nodev1.RuntimeClass); is {
			all[class.Name] = class.Handler
		}
	}
	return all
}
