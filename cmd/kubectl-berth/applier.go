package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-cri/berth/pkg/cluster"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// undoTimeout bounds the way back, which also an interrupt does not shorten.
const undoTimeout = 30 * time.Second

// change is what an apply does to one class.
type change struct {
	class runtimeclass.Class
	// before is nil if there was none.
	before, after *nodev1.RuntimeClass
	effect        cluster.Effect
}

// applier applies classes, all of them or none.
type applier struct {
	*server
	manager string
	force   bool
}

// try sends all classes without keeping them. The error has what the server says
// against any of them.
func (a *applier) try(ctx context.Context, classes []runtimeclass.Class, before []nodev1.RuntimeClass) ([]change, error) {
	var all []change
	var problems []error
	for _, c := range classes {
		one := change{class: c}
		if i := slices.IndexFunc(before, func(b nodev1.RuntimeClass) bool { return b.Name == c.Name }); i >= 0 {
			one.before = &before[i]
		}
		after, err := a.send(ctx, one, metav1.DryRunAll)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", c.Where(""), err))
			if !toldByServer(err) {
				break // nor would it answer for the others
			}
			continue
		}
		one.after, one.effect = after, cluster.Compare(one.before, after)
		all = append(all, one)
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("nothing was applied: %w", errors.Join(problems...))
	}
	return all, nil
}

// toldByServer: the error is an answer of the API server.
func toldByServer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// send applies one class, which has to be what it was before.
func (a *applier) send(ctx context.Context, c change, dryRun ...string) (*nodev1.RuntimeClass, error) {
	class := c.class.RuntimeClass.DeepCopy()
	// What somebody has read from a cluster may be applied again.
	class.ManagedFields = nil
	if c.before != nil && class.ResourceVersion == "" {
		class.ResourceVersion = c.before.ResourceVersion
	}
	body, err := json.Marshal(class)
	if err != nil {
		return nil, err
	}
	after, err := a.classes.Patch(ctx, class.Name, types.ApplyPatchType, body, metav1.PatchOptions{
		DryRun: dryRun, FieldManager: a.manager, Force: &a.force, FieldValidation: metav1.FieldValidationStrict,
	})
	switch {
	case err == nil:
		return after, nil
	case !apierrors.IsConflict(err):
		return nil, a.explain("patch", "runtimeclasses.node.k8s.io", err)
	case strings.Contains(err.Error(), "object has been modified"):
		advice := "apply again"
		if c.class.ResourceVersion != "" {
			advice = "remove metadata.resourceVersion from the file, or update it"
		}
		return nil, fmt.Errorf("RuntimeClass %q was changed by another client meanwhile; %s: %w", class.Name, advice, err)
	}
	return nil, fmt.Errorf("RuntimeClass %q: %w; remove these fields, or take them over by --force-conflicts", class.Name, err)
}

// apply applies what was tried. If one fails, those before it are undone, last first;
// the error says what became of each.
func (a *applier) apply(ctx context.Context, tried []change) ([]change, error) {
	var done []change
	for _, c := range tried {
		after, err := a.send(ctx, c)
		if err != nil {
			return nil, a.failed(ctx, done, c, err)
		}
		c.after, c.effect = after, cluster.Compare(c.before, after)
		done = append(done, c)
	}
	return done, nil
}

// failed undoes what was done before an apply that failed, and maybe itself.
func (a *applier) failed(ctx context.Context, done []change, last change, err error) error {
	// The way back is gone to its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var told []string
	if text := a.undoUnclear(ctx, last); text != "" {
		told = append(told, text)
	}
	for _, c := range slices.Backward(done) {
		if text := a.undoOne(ctx, c); text != "" {
			told = append(told, text)
		}
	}
	if len(told) == 0 {
		return fmt.Errorf("RuntimeClass %q was not applied, and nothing else: %w", last.class.Name, err)
	}
	return fmt.Errorf("RuntimeClass %q was not applied: %w\n%s", last.class.Name, err, strings.Join(told, "\n"))
}

// undoUnclear takes back an apply that failed and may have happened all the same.
func (a *applier) undoUnclear(ctx context.Context, tried change) string {
	now, err := a.classes.Get(ctx, tried.class.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return ""
	case err != nil:
		return fmt.Sprintf("RuntimeClass %q may have been applied: %v", tried.class.Name, a.explain("get", "runtimeclasses.node.k8s.io", err))
	case tried.before != nil && tried.before.ResourceVersion == now.ResourceVersion, cluster.Compare(now, tried.after) != cluster.Unchanged:
		return "" // it did not, and what it is was done by others
	}
	tried.after = now
	return a.undoOne(ctx, tried)
}

// undoOne takes a change back and says so, or why not. It says nothing if there is
// nothing to take back.
func (a *applier) undoOne(ctx context.Context, c change) string {
	name := c.class.Name
	var err error
	how := cluster.HowToUndo(c.before, c.after, a.manager)
	switch how {
	case cluster.Nothing:
		return ""
	case cluster.Leave:
		return fmt.Sprintf("RuntimeClass %q was applied and is kept: another client has changed it meanwhile", name)
	case cluster.Delete:
		err = a.classes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.after.UID, ResourceVersion: &c.after.ResourceVersion}})
	case cluster.Restore:
		err = a.restore(ctx, c)
	}
	switch {
	case err != nil:
		verb := map[cluster.Undo]string{cluster.Delete: "delete", cluster.Restore: "update"}[how]
		return fmt.Sprintf("RuntimeClass %q was applied and is kept: %v", name, a.explain(verb, "runtimeclasses.node.k8s.io", err))
	case how == cluster.Delete:
		return fmt.Sprintf("RuntimeClass %q was deleted again", name)
	}
	return fmt.Sprintf("RuntimeClass %q was restored", name)
}

// restore makes a class what it was, with the owners of its fields. The way back is
// an update, which would make its manager one of them, so they are put back by a
// second one.
func (a *applier) restore(ctx context.Context, c change) error {
	old := c.before.DeepCopy()
	old.ResourceVersion = c.after.ResourceVersion
	now, err := a.classes.Update(ctx, old, metav1.UpdateOptions{FieldManager: a.manager})
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": now.ResourceVersion, "managedFields": c.before.ManagedFields,
	}})
	if err != nil {
		return err
	}
	if _, err = a.classes.Patch(ctx, old.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: a.manager}); err != nil {
		return fmt.Errorf("it was restored except for the owners of its fields: %w", err)
	}
	return nil
}
