package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/pkg/cluster"
)

// undoTimeout bounds the way back, which also an interrupt does not shorten.
const undoTimeout = 30 * time.Second

// again is how often a change is tried that only what a controller said was in the way of.
const again = 3

// change is what an apply does to one object.
type change struct {
	// where is the file that has it, or empty.
	where    string
	resource schema.GroupVersionResource
	object   *unstructured.Unstructured
	// before is nil if there was none.
	before, after *unstructured.Unstructured
	// taken is what it was when its fields had been taken over, or nil. The owners of before are then
	// those that an undo puts back.
	taken *unstructured.Unstructured
	// created: it was this apply that made it.
	created bool
	effect  cluster.Effect
}

// base is what an apply of it builds on.
func (c *change) base() *unstructured.Unstructured { return cmp.Or(c.taken, c.before) }

func (c *change) String() string { return fmt.Sprintf("%s %q", c.object.GetKind(), c.object.GetName()) }

// name is what kubectl calls it.
func (c *change) name() string {
	return fmt.Sprintf("%s.%s/%s", strings.ToLower(c.object.GetKind()), c.resource.Group, c.object.GetName())
}

// applier applies objects, all of them or none.
type applier struct {
	*server
	manager string
	force   bool
	// whole: by force, nothing of what other managers own stays. Lists would have both.
	whole bool
	// advice is what to do about fields that others own.
	advice string
}

// neverThere is a version that no object has: an apply with it creates one, and changes none that
// somebody else has created meanwhile.
const neverThere = "1"

// errMeanwhile is of an object that this apply has not created although there was none.
var errMeanwhile = errors.New("it was created by another client meanwhile; apply again")

func (a *applier) client(c *change) dynamic.ResourceInterface { return a.objects.Resource(c.resource) }

func (a *applier) explained(verb string, c *change, err error) error {
	if unserved(err) && c.resource.Group == policyVersion.Group && (verb == "get" || verb == "patch") {
		return fmt.Errorf("the API server does not serve %s of %s: %w; Kubernetes 1.36 does", c.object.GetKind(), c.resource.GroupVersion(), err)
	}
	return a.explain(verb, c.resource.GroupResource().String(), err)
}

// unserved: a server that has no such kind says so.
func unserved(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
}

// try sends all objects without keeping them, and says in each what would come of it. The
// error has what the server says against any of them.
func (a *applier) try(ctx context.Context, all []change) error {
	var problems []error
	var lacking once
	for i := range all {
		c := &all[i]
		if err := a.send(ctx, c, metav1.DryRunAll); err != nil && !lacking.told(c, err) {
			if errors.Is(err, errMeanwhile) {
				err = fmt.Errorf("%s: %w", c, err)
			}
			if c.where != "" {
				err = fmt.Errorf("%s: %w", c.where, err)
			}
			problems = append(problems, err)
			if !toldByServer(err) {
				break // nor would it answer for the others
			}
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("nothing was applied: %w", errors.Join(problems...))
	}
	return nil
}

// read has each object as it is before.
func (a *applier) read(ctx context.Context, all []change) error {
	var problems []error
	var lacking once
	for i := range all {
		c := &all[i]
		before, err := a.client(c).Get(ctx, c.object.GetName(), metav1.GetOptions{})
		switch {
		case err == nil:
			c.before = before
		case !apierrors.IsNotFound(err):
			if lacking.told(c, err) {
				continue
			}
			problems = append(problems, a.explained("get", c, err))
			if !toldByServer(err) {
				return fmt.Errorf("nothing was applied: %w", errors.Join(problems...))
			}
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("nothing was applied: %w", errors.Join(problems...))
	}
	return nil
}

// once tells of a right that is missing for one object of a kind, and not for all of them.
type once map[schema.GroupVersionResource]bool

func (o *once) told(c *change, err error) bool {
	if !apierrors.IsForbidden(err) {
		return false
	}
	if *o == nil {
		*o = once{}
	}
	told := (*o)[c.resource]
	(*o)[c.resource] = true
	return told
}

// toldByServer: the error is an answer of the API server.
func toldByServer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// send applies one object, which has to be what it was before.
func (a *applier) send(ctx context.Context, c *change, dryRun ...string) error {
	given := c.object.GetResourceVersion() != ""
	for try := 1; ; try++ {
		after, created, err := a.patch(ctx, c, dryRun...)
		if err == nil {
			c.after, c.created, c.effect = after, created, cluster.Compare(c.before, after)
			if c.before == nil && !created {
				return errMeanwhile
			}
			return nil
		}
		if !apierrors.IsConflict(err) {
			return a.explained("patch", c, err)
		}
		if !strings.Contains(err.Error(), "object has been modified") {
			return fmt.Errorf("%s: %w; %s by --force-conflicts", c, err, a.advice)
		}
		if !given && c.before == nil {
			return errMeanwhile
		}
		if !given && try < again {
			if now := a.same(ctx, c, c.base()); now != nil {
				if c.taken != nil {
					c.taken = now
				} else {
					c.before = now
				}
				continue
			}
		}
		advice := "apply again"
		if given {
			advice = "remove metadata.resourceVersion from the file, or update it"
		}
		return fmt.Errorf("%s was changed by another client meanwhile; %s: %w", c, advice, err)
	}
}

// patch applies an object, and says whether that created it.
func (a *applier) patch(ctx context.Context, c *change, dryRun ...string) (after *unstructured.Unstructured, created bool, err error) {
	object := c.object.DeepCopy()
	// What somebody has read from a cluster may be applied again.
	object.SetManagedFields(nil)
	if a.takesOver(c.base()) {
		if len(dryRun) > 0 { // which does not keep what would be taken over first
			object.SetResourceVersion(c.base().GetResourceVersion())
			after, err = a.client(c).Update(ctx, object, metav1.UpdateOptions{DryRun: dryRun, FieldManager: a.manager, FieldValidation: metav1.FieldValidationStrict})
			return after, false, err
		}
		taken, err := a.takeOver(ctx, c)
		if err != nil {
			return nil, false, err
		}
		c.taken = taken
	}
	switch {
	case object.GetResourceVersion() != "":
	case c.base() != nil:
		object.SetResourceVersion(c.base().GetResourceVersion())
	default:
		object.SetResourceVersion(neverThere)
	}
	body, err := json.Marshal(object.Object)
	if err != nil {
		return nil, false, err
	}
	status := 0
	after, err = a.client(c).Patch(withStatus(ctx, &status), object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
		DryRun: dryRun, FieldManager: a.manager, Force: &a.force, FieldValidation: metav1.FieldValidationStrict,
	})
	return after, status == http.StatusCreated, err
}

// takesOver says whether an apply takes over the fields of an object that is there, by a request of its own.
func (a *applier) takesOver(o *unstructured.Unstructured) bool {
	return a.whole && a.force && ownedByOthers(o, a.manager)
}

// ownedByOthers says whether an object has fields that an apply by a manager would leave.
func ownedByOthers(o *unstructured.Unstructured, manager string) bool {
	return o != nil && slices.ContainsFunc(o.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool {
		return m.Subresource == "" && (m.Manager != manager || m.Operation != metav1.ManagedFieldsOperationApply)
	})
}

// takeOver makes the manager of this apply the one that has applied all fields of an object:
// those that it does not apply then go.
func (a *applier) takeOver(ctx context.Context, c *change) (*unstructured.Unstructured, error) {
	owned, managers := c.base().DeepCopy(), sets.New[string]()
	entries := owned.GetManagedFields()
	for i := range entries {
		m := &entries[i]
		if m.Subresource != "" {
			continue
		}
		// Of each manager one entry is united, and only one of this version that is an update; what the others own
		// would have no owner. Policies have the same fields in all versions.
		m.APIVersion = c.object.GetAPIVersion()
		if m.Manager != a.manager || m.Operation != metav1.ManagedFieldsOperationApply {
			m.Manager, m.Operation = fmt.Sprintf("taken-%d", i), metav1.ManagedFieldsOperationUpdate
			managers.Insert(m.Manager)
		}
	}
	owned.SetManagedFields(entries)
	if err := csaupgrade.UpgradeManagedFields(owned, managers, a.manager); err != nil {
		return nil, fmt.Errorf("take over the fields of %s: %w", c, err)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": c.base().GetResourceVersion(), "managedFields": owned.GetManagedFields(),
	}})
	if err != nil {
		return nil, err
	}
	return a.client(c).Patch(ctx, c.object.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: a.manager})
}

// same is an object as it is now, if it is still what it was but for what controllers say
// in its status, else nil.
func (a *applier) same(ctx context.Context, c *change, was *unstructured.Unstructured) *unstructured.Unstructured {
	now, err := a.client(c).Get(ctx, was.GetName(), metav1.GetOptions{})
	if err != nil || now.GetUID() != was.GetUID() || cluster.Compare(was, now) != cluster.Unchanged {
		return nil
	}
	return now
}

// apply applies what was tried. If one fails, those before it are undone, last first;
// the error says what became of each.
func (a *applier) apply(ctx context.Context, tried []change) error {
	for i := range tried {
		if err := a.send(ctx, &tried[i]); err != nil {
			return a.failed(ctx, tried[:i], &tried[i], err)
		}
	}
	return nil
}

// failed undoes what was done before an apply that failed, and maybe itself.
func (a *applier) failed(ctx context.Context, done []change, last *change, err error) error {
	// The way back is gone to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	u := &undoing{applier: a}
	if !errors.Is(err, errMeanwhile) {
		u.unclear(ctx, last)
	} else {
		// The other one found these as it wants them and counts on them, also where it changed nothing.
		for i := range done {
			if done[i].effect != cluster.Unchanged {
				u.tell("%s was applied and is kept: another client applies at the same time", &done[i])
			}
		}
		done = nil
	}
	for i := range slices.Backward(done) {
		u.one(ctx, &done[i])
	}
	u.commands()
	if len(u.told) == 0 {
		return fmt.Errorf("%s was not applied, and nothing else: %w", last, err)
	}
	return fmt.Errorf("%s was not applied: %w\n%s", last, err, strings.Join(u.told, "\n"))
}

// undoing is the way back, with what became of each object, and of those that are kept
// what has to be done by hand.
type undoing struct {
	*applier
	told     []string
	created  []string
	replaced []*unstructured.Unstructured
}

func (u *undoing) tell(format string, args ...any) {
	u.told = append(u.told, fmt.Sprintf(format, args...))
}

// unclear undoes an apply that failed and may have happened all the same.
func (u *undoing) unclear(ctx context.Context, tried *change) {
	now, err := u.client(tried).Get(ctx, tried.object.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		u.tell("%s may have been applied: %v", tried, u.explained("get", tried, err))
		u.byHand(tried)
	case tried.before != nil && tried.before.GetResourceVersion() == now.GetResourceVersion():
		// nothing has happened
	case u.onlyTaken(tried, now):
		tried.after = now
		u.one(ctx, tried)
	case cluster.Compare(now, tried.after) != cluster.Unchanged:
		// It did not, and what it is was done by others.
		if tried.taken != nil && tried.taken.GetUID() == now.GetUID() {
			u.tell("the ownership of the fields of %s was taken over, and is kept: another client has changed it meanwhile", tried)
		}
	case tried.before == nil:
		// Another call may have created the same.
		u.tell("%s may have been applied, and is kept: it is there, by this call or by another client", tried)
		u.byHand(tried)
	default:
		tried.after = now
		u.one(ctx, tried)
	}
}

// onlyTaken says whether the fields of an object were taken over, also if nobody has answered that, and nothing
// else has happened to it since.
func (u *undoing) onlyTaken(tried *change, now *unstructured.Unstructured) bool {
	return u.takesOver(tried.before) && !ownedByOthers(now, u.manager) &&
		tried.before.GetUID() == now.GetUID() && cluster.Compare(tried.before, now) == cluster.Unchanged
}

// one undoes a change and tells it, or why not. It tells nothing if there is nothing to undo.
func (u *undoing) one(ctx context.Context, c *change) {
	how, err := u.undo(ctx, c)
	switch {
	case how == cluster.Nothing:
	case how == cluster.Leave:
		u.tell("%s was applied and is kept: another client has changed it meanwhile", c)
	case err != nil:
		verb := map[cluster.Undo]string{cluster.Delete: "delete", cluster.Restore: "update"}[how]
		u.tell("%s was applied and is kept: %v", c, u.explained(verb, c, err))
		u.byHand(c)
	case how == cluster.Delete:
		u.tell("%s was deleted again", c)
	default:
		u.tell("%s was restored", c)
	}
}

// undo does it, also if a controller has said something of the object meanwhile.
func (u *undoing) undo(ctx context.Context, c *change) (cluster.Undo, error) {
	for try := 1; ; try++ {
		var err error
		how := cluster.HowToUndo(c.before, c.after, c.created, u.manager)
		switch how {
		case cluster.Delete:
			uid, version := c.after.GetUID(), c.after.GetResourceVersion()
			err = u.client(c).Delete(ctx, c.object.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		case cluster.Restore:
			err = u.restore(ctx, c)
		case cluster.Nothing, cluster.Leave:
		}
		if !apierrors.IsConflict(err) || try == again {
			return how, err
		}
		now := u.same(ctx, c, c.after)
		if now == nil {
			return how, err
		}
		c.after = now
	}
}

// restore makes an object what it was, with the owners of its fields. The way back is
// an update, which would make its manager one of them, so they are put back by a
// second one.
func (u *undoing) restore(ctx context.Context, c *change) error {
	old := c.before.DeepCopy()
	old.SetResourceVersion(c.after.GetResourceVersion())
	now, err := u.client(c).Update(ctx, old, metav1.UpdateOptions{FieldManager: u.manager})
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": now.GetResourceVersion(), "managedFields": c.before.GetManagedFields(),
	}})
	if err != nil {
		return err
	}
	if _, err = u.client(c).Patch(ctx, old.GetName(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: u.manager}); err != nil {
		return fmt.Errorf("it was restored except for the owners of its fields: %w", err)
	}
	return nil
}

// byHand keeps what somebody has to do who wants to undo a change that is kept.
func (u *undoing) byHand(c *change) {
	if c.before == nil {
		u.created = append(u.created, c.name())
		return
	}
	u.replaced = append(u.replaced, cluster.Bare(c.before))
}

// commands tells how to undo by hand what is kept. What was there before is in a file.
func (u *undoing) commands() {
	if len(u.created) > 0 {
		u.tell("to undo it by hand, run: kubectl delete --ignore-not-found %s", strings.Join(u.created, " "))
	}
	if len(u.replaced) == 0 {
		return
	}
	file, err := saved(u.replaced)
	if err != nil {
		u.tell("what was there before cannot be written to a file: %v", err)
		return
	}
	u.tell("what was there before is in a file; to restore it, run: kubectl replace -f %s", file)
}

// saved is a new file with objects.
func saved(all []*unstructured.Unstructured) (string, error) {
	f, err := os.CreateTemp("", "kubectl-berth-before-*.yaml")
	if err != nil {
		return "", err
	}
	for _, one := range all {
		text, err := yaml.Marshal(one.Object)
		if err == nil {
			_, err = fmt.Fprintf(f, "---\n%s", text)
		}
		if err != nil {
			return "", errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}
	return f.Name(), f.Close()
}
