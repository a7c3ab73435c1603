package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"
)

// answers is an applier of which each request gets an answer by its verb.
func answers(by map[string]k8stesting.ReactionFunc) *applier {
	client := fake.NewSimpleDynamicClient(runtime.NewScheme())
	for verb, answer := range by {
		client.PrependReactor(verb, "*", answer)
	}
	return &applier{server: &server{objects: client}, manager: fieldManager, force: true, whole: true}
}

// aPolicy is one of a version, and where it may be that of another client.
func aPolicy(name, version, uid string, owners ...metav1.ManagedFieldsEntry) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": policyVersion.String(), "kind": "ValidatingAdmissionPolicy",
		"metadata": map[string]any{"name": name, "resourceVersion": version, "uid": uid},
	}}
	o.SetManagedFields(owners)
	return o
}

func failing(err error) k8stesting.ReactionFunc {
	return func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, err }
}

// What somebody else has created since is told by its name, also where nothing was applied yet.
func TestTryNamesWhatOthersCreated(t *testing.T) {
	a := answers(map[string]k8stesting.ReactionFunc{"patch": failing(apierrors.NewConflict(policyVersion.WithResource("x").GroupResource(), "p", errors.New("the object has been modified")))})
	c := policyChange(aPolicy("p", "", ""))
	const want = `nothing was applied: ValidatingAdmissionPolicy "p": it was created by another client meanwhile; apply again`
	if err := a.try(t.Context(), []change{c}); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// That policies cannot be seen again is nothing that another client did.
func TestConfirm(t *testing.T) {
	there := aPolicy("p", "5", "u")
	gone := apierrors.NewNotFound(policyVersion.WithResource("validatingadmissionpolicies").GroupResource(), "p")
	away := apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "get", policyVersion.WithResource("x").GroupResource(), "p", "away", 0, true)
	for what, c := range map[string]struct {
		answer k8stesting.ReactionFunc
		want   string
	}{
		"all are there": {func(k8stesting.Action) (bool, runtime.Object, error) { return true, there, nil }, ""},
		"made anew":     {func(k8stesting.Action) (bool, runtime.Object, error) { return true, aPolicy("p", "6", "v"), nil }, `another client was at work meanwhile; apply again: ValidatingAdmissionPolicy "p" was changed`},
		"removed":       {failing(gone), `another client was at work meanwhile; apply again: ValidatingAdmissionPolicy "p" was removed`},
		"not seen":      {failing(away), `all policies were applied; apply again to see whether all are still there: ValidatingAdmissionPolicy "p": get `},
	} {
		one := policyChange(there)
		one.after = there
		w := &policyApply{applier: answers(map[string]k8stesting.ReactionFunc{"get": c.answer}), all: []change{one}}
		if err := w.confirm(t.Context()); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// owner is a manager of one field of a spec.
func owner(manager string, how metav1.ManagedFieldsOperationType, version, field string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: how, APIVersion: policyVersion.Group + "/" + version, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:` + field + `":{}}}`),
	}
}

// What nobody owned afterwards would stay, and nobody would see why.
func TestTakeOver(t *testing.T) {
	const applied, updated = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	status := owner("controller", updated, "v1", "s")
	status.Subresource = "status"
	for what, owners := range map[string][]metav1.ManagedFieldsEntry{
		"one that applied":             {owner("kubectl", applied, "v1", "a")},
		"one that updated":             {owner("kubectl-create", updated, "v1", "a")},
		"two":                          {owner("kubectl", applied, "v1", "a"), owner("kubectl-edit", updated, "v1", "b")},
		"one that did both":            {owner("argocd", applied, "v1", "a"), owner("argocd", updated, "v1", "b")},
		"both, besides this one":       {owner(fieldManager, applied, "v1", "c"), owner("argocd", applied, "v1", "a"), owner("argocd", updated, "v1", "b")},
		"this one, which also updated": {owner(fieldManager, applied, "v1", "a"), owner(fieldManager, updated, "v1", "b")},
		"one of another version":       {owner("kubectl", applied, "v1", "a"), owner("kubectl-edit", updated, "v1beta1", "b")},
		"one of two versions":          {owner("kubectl-edit", updated, "v1", "a"), owner("kubectl-edit", updated, "v1beta1", "b")},
		"only another version":         {owner(fieldManager, applied, "v1beta1", "a"), owner("kubectl", applied, "v1beta1", "b")},
	} {
		var sent struct {
			Metadata struct{ ManagedFields []metav1.ManagedFieldsEntry }
		}
		before := aPolicy("p", "5", "u", append(owners, status)...)
		a := answers(map[string]k8stesting.ReactionFunc{"patch": func(r k8stesting.Action) (bool, runtime.Object, error) {
			p, _ := r.(k8stesting.PatchAction)
			return true, before, json.Unmarshal(p.GetPatch(), &sent)
		}})
		c := policyChange(before)
		c.before = before
		if _, err := a.takeOver(t.Context(), &c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		now := sent.Metadata.ManagedFields
		if len(now) != 2 || !slices.ContainsFunc(now, func(m metav1.ManagedFieldsEntry) bool { return m.Subresource == "status" && m.Manager == "controller" }) {
			t.Errorf("%s: %v", what, now)
			continue
		}
		i := slices.IndexFunc(now, func(m metav1.ManagedFieldsEntry) bool { return m.Subresource == "" })
		if m := now[i]; m.Manager != fieldManager || m.Operation != applied || m.APIVersion != policyVersion.String() {
			t.Errorf("%s: taken over by %+v", what, m)
		}
		for _, one := range owners {
			_, field, _ := strings.Cut(one.FieldsV1.GetRawString(), `"f:spec":{`)
			if field = field[:len(`"f:a"`)]; !strings.Contains(now[i].FieldsV1.GetRawString(), field) {
				t.Errorf("%s: %s is nobody's now: %s", what, field, now[i].FieldsV1.GetRawString())
			}
		}
	}
}

// An apply that takes fields over is two requests. If the second fails, their owners are as they were before both.
func TestTakenOverAndFailed(t *testing.T) {
	refused := apierrors.NewForbidden(policyVersion.WithResource("x").GroupResource(), "p", errors.New("no"))
	modified := apierrors.NewConflict(policyVersion.WithResource("x").GroupResource(), "p", errors.New("the object has been modified"))
	for what, c := range map[string]struct {
		// fails is what the applies after the takeover are answered, in this order; then they are refused.
		fails []error
		// lost: nobody is told that the fields were taken over.
		lost bool
		// then happens to the object when an apply fails.
		then  func(o *unstructured.Unstructured)
		told  string
		owner string
	}{
		"refused":                   {nil, false, nil, `ValidatingAdmissionPolicy "p" was restored`, "kubectl"},
		"taken over without answer": {nil, true, nil, `ValidatingAdmissionPolicy "p" was restored`, "kubectl"},
		"tried again, and refused":  {[]error{modified, modified}, false, nil, `ValidatingAdmissionPolicy "p" was restored`, "kubectl"},
		"changed by another client": {nil, false, func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) }, `the ownership of the fields of ValidatingAdmissionPolicy "p" was taken over, and is kept: another client has changed it`, fieldManager},
		"made anew":                 {nil, false, func(o *unstructured.Unstructured) { o.SetUID("v"); o.SetLabels(map[string]string{"a": "b"}) }, "and nothing else", fieldManager},
	} {
		is, version := aPolicy("p", "1", "u", owner("kubectl", metav1.ManagedFieldsOperationApply, "v1", "a")), 1
		changed := func() {
			version++
			is.SetResourceVersion(strconv.Itoa(version))
		}
		fails := c.fails
		a := answers(map[string]k8stesting.ReactionFunc{
			"get": func(k8stesting.Action) (bool, runtime.Object, error) { return true, is.DeepCopy(), nil },
			"update": func(r k8stesting.Action) (bool, runtime.Object, error) {
				u, _ := r.(k8stesting.UpdateAction)
				is, _ = u.GetObject().DeepCopyObject().(*unstructured.Unstructured)
				changed()
				return true, is.DeepCopy(), nil
			},
			"patch": func(r k8stesting.Action) (bool, runtime.Object, error) {
				p, _ := r.(k8stesting.PatchAction)
				if p.GetPatchType() == types.MergePatchType {
					var sent struct {
						Metadata struct{ ManagedFields []metav1.ManagedFieldsEntry }
					}
					if err := json.Unmarshal(p.GetPatch(), &sent); err != nil {
						return true, nil, err
					}
					is.SetManagedFields(sent.Metadata.ManagedFields)
					changed()
					if c.lost {
						c.lost = false
						return true, nil, refused
					}
					return true, is.DeepCopy(), nil
				}
				if c.then != nil {
					c.then(is)
				}
				if len(fails) == 0 {
					return true, nil, refused
				}
				err := fails[0]
				fails = fails[1:]
				changed() // as a controller does that writes its status
				return true, nil, err
			},
		})
		one := policyChange(aPolicy("p", "", ""))
		one.object.SetLabels(map[string]string{"new": "one"})
		one.before, one.after = is.DeepCopy(), aPolicy("p", "1", "u")
		one.after.SetLabels(one.object.GetLabels())
		err := a.apply(t.Context(), []change{one})
		if err == nil || !strings.Contains(err.Error(), c.told) {
			t.Errorf("%s: got %v", what, err)
		}
		if now := is.GetManagedFields(); len(now) != 1 || now[0].Manager != c.owner {
			t.Errorf("%s: owned by %v", what, now)
		}
	}
}
