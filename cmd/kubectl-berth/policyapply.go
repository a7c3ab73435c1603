package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-cri/berth/pkg/cluster"
	"github.com/berth-cri/berth/pkg/policy"
)

var policyVersion = admissionv1.SchemeGroupVersion

// policyKind is a kind, and how requests call it.
type policyKind struct{ kind, resource string }

// policyKinds are all there are, in the order in which they are removed: a binding is what
// puts its policy in force.
var policyKinds = []policyKind{
	{"MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"},
	{"ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"},
	{"MutatingAdmissionPolicy", "mutatingadmissionpolicies"},
	{"ValidatingAdmissionPolicy", "validatingadmissionpolicies"},
}

func policyChange(o *unstructured.Unstructured) change {
	i := slices.IndexFunc(policyKinds, func(k policyKind) bool { return k.kind == o.GetKind() })
	return change{resource: policyVersion.WithResource(policyKinds[i].resource), object: o}
}

// policyApply is one call of "policy --apply".
type policyApply struct {
	*applier
	*policyCommand
	flags *policyFlags
	all   []change
}

// applyPolicies sends all policies as a dry run, then applies them in their order, or undoes
// what it did. What is left of earlier calls is removed last, or told. The next call
// finishes what was interrupted.
func (p *policyCommand) applyPolicies(ctx context.Context, s *server, f *policyFlags, objects []unstructured.Unstructured) error {
	w := &policyApply{
		applier:       &applier{server: s, manager: fieldManager, force: f.force, whole: true, advice: "take these fields over"},
		policyCommand: p, flags: f,
	}
	for i := range objects {
		w.all = append(w.all, policyChange(&objects[i]))
	}
	if err := w.read(ctx, w.all); err != nil {
		return err
	}
	if err := w.try(ctx, w.all); err != nil {
		return err
	}
	var left []change
	var err error
	if f.prune {
		if left, err = w.left(ctx); err == nil {
			err = w.remove(ctx, left, metav1.DryRunAll)
		}
		if err != nil {
			return fmt.Errorf("nothing was applied: %w", err)
		}
	}
	if f.dryRun {
		w.print(w.all)
		w.print(left)
	} else {
		if err := w.apply(ctx, w.all); err != nil {
			return err
		}
		w.print(w.all)
		if err := w.confirm(ctx); err != nil {
			return err
		}
		if err := w.remove(ctx, left); err != nil {
			return fmt.Errorf("all policies were applied, and not all earlier ones removed; run it again to finish: %w", err)
		}
	}
	if f.prune {
		return nil
	}
	if left, err = w.left(ctx); err != nil {
		w.note("policies of earlier calls were not looked for: %v", err)
		return nil
	}
	w.noteLeft(left)
	return nil
}

// confirm looks at all policies once more: while some were applied, another client may have
// removed or changed others, and each is nothing without the rest.
func (w *policyApply) confirm(ctx context.Context) error {
	var others, unseen []error
	for i := range w.all {
		c := &w.all[i]
		now, err := w.client(c).Get(ctx, c.object.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			others = append(others, fmt.Errorf("%s was removed", c))
		case err != nil:
			unseen = append(unseen, fmt.Errorf("%s: %w", c, w.explained("get", c, err)))
		case now.GetUID() != c.after.GetUID() || cluster.Compare(c.after, now) != cluster.Unchanged:
			others = append(others, fmt.Errorf("%s was changed", c))
		}
	}
	switch {
	case len(others) > 0:
		return fmt.Errorf("all policies were applied, but another client was at work meanwhile; apply again: %w", errors.Join(slices.Concat(others, unseen)...))
	case len(unseen) > 0:
		return fmt.Errorf("all policies were applied; apply again to see whether all are still there: %w", errors.Join(unseen...))
	}
	return nil
}

func (w *policyApply) print(all []change) {
	suffix := ""
	if w.flags.dryRun {
		suffix = " (server dry run)"
	}
	for i := range all {
		fmt.Fprintf(w.Out, "%s %s%s\n", all[i].name(), all[i].effect, suffix)
	}
}

// left are objects that an earlier call has applied and that are not among these: they
// stay in force. Only those with the label of this command are looked at.
func (w *policyApply) left(ctx context.Context) ([]change, error) {
	there, err := w.policies(ctx)
	if err != nil {
		return nil, err
	}
	var left []change
	for i := range there {
		one := policyChange(&there[i])
		if !slices.ContainsFunc(w.all, func(c change) bool { return c.name() == one.name() }) {
			one.effect = cluster.Pruned
			left = append(left, one)
		}
	}
	return left, nil
}

// policies are policies and bindings with the label of this command, in the order of their
// kinds.
func (s *server) policies(ctx context.Context) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	var problems []error
	for _, k := range policyKinds {
		resource := policyVersion.WithResource(k.resource)
		there, err := s.objects.Resource(resource).List(ctx, metav1.ListOptions{LabelSelector: policy.ManagedByLabel + "=" + policy.ManagedBy})
		switch {
		case err == nil:
			all = append(all, there.Items...)
		case apierrors.IsNotFound(err): // a server that has no such kind has none of them
		default:
			problems = append(problems, s.explain("list", resource.GroupResource().String(), err))
			if !toldByServer(err) {
				return nil, errors.Join(problems...)
			}
		}
	}
	return all, errors.Join(problems...)
}

// inForce are the policies that have a binding.
func inForce(all []unstructured.Unstructured) []cluster.Policy {
	bound := map[string]bool{}
	var found []cluster.Policy
	for i := range all { // bindings come first
		o := &all[i]
		if kind, binding := strings.CutSuffix(o.GetKind(), "Binding"); binding {
			name, _, _ := unstructured.NestedString(o.Object, "spec", "policyName")
			bound[kind+"/"+name] = true
			continue
		}
		if bound[o.GetKind()+"/"+o.GetName()] {
			one := cluster.Policy{Kind: o.GetKind(), Name: o.GetName()}
			one.Classes = policy.ParseNamed(o.GetAnnotations()[policy.ClassesAnnotation])
			found = append(found, one)
		}
	}
	return found
}

// remove removes what is left of earlier calls, and prints it unless it is a dry run. An object
// that was made anew meanwhile is kept.
func (w *policyApply) remove(ctx context.Context, left []change, dryRun ...string) error {
	var problems []error
	for i := range left {
		c := &left[i]
		uid := c.object.GetUID()
		err := w.client(c).Delete(ctx, c.object.GetName(), metav1.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &uid}})
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			problems = append(problems, fmt.Errorf("%s: %w", c, w.explained("delete", c, err)))
			if !toldByServer(err) {
				return errors.Join(problems...)
			}
		case len(dryRun) == 0:
			w.print(left[i : i+1])
		}
	}
	return errors.Join(problems...)
}

// noteLeft tells of policies with their bindings, and of what has lost its other half.
func (w *policyApply) noteLeft(left []change) {
	names := map[string][]string{} // of policies: what kubectl calls them and their bindings
	var order []string
	for i := range left {
		c := &left[i]
		policy := strings.TrimSuffix(c.object.GetKind(), "Binding") + " " + c.object.GetName()
		if names[policy] == nil {
			order = append(order, policy)
		}
		names[policy] = append(names[policy], strings.ToLower(c.object.GetKind())+"/"+c.object.GetName())
	}
	for _, one := range order {
		w.note("%s is still there, and not among these; remove it by --prune, or by: kubectl delete %s", one, strings.Join(names[one], " "))
	}
}
