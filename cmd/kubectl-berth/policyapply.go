package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-cri/berth/pkg/cluster"
	"github.com/berth-cri/berth/pkg/policy"
)

// policyResources are how the kinds are called in requests.
var policyResources = map[string]string{
	"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
	"MutatingAdmissionPolicy":          "mutatingadmissionpolicies",
	"MutatingAdmissionPolicyBinding":   "mutatingadmissionpolicybindings",
}

// applyPolicies sends all policies as a dry run, then applies them, each before its
// binding. The next call finishes what was interrupted.
func (p *program) applyPolicies(ctx context.Context, s *server, f *policyFlags, all []unstructured.Unstructured) error {
	var problems []error
	for i := range all {
		if _, err := s.sendPolicy(ctx, f, &all[i], metav1.DryRunAll); err != nil {
			problems = append(problems, err)
			if !toldByServer(err) {
				break // nor would it answer for the others
			}
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("nothing was applied: %w", errors.Join(problems...))
	}
	suffix, dryRun := "", []string(nil)
	if f.dryRun {
		suffix, dryRun = " (server dry run)", []string{metav1.DryRunAll}
	}
	for i := range all {
		effect, err := s.sendPolicy(ctx, f, &all[i], dryRun...)
		if err != nil {
			return fmt.Errorf("%d of %d objects were applied; apply again to finish: %w", i, len(all), err)
		}
		fmt.Fprintf(p.Out, "%s.%s/%s %s%s\n", strings.ToLower(all[i].GetKind()), admissionv1.GroupName, all[i].GetName(), effect, suffix)
	}
	return p.noteLeft(ctx, s, all)
}

// sendPolicy applies one object, and says what that did to it.
func (s *server) sendPolicy(ctx context.Context, f *policyFlags, one *unstructured.Unstructured, dryRun ...string) (cluster.Effect, error) {
	resource := policyResources[one.GetKind()]
	of := s.policies.Resource(admissionv1.SchemeGroupVersion.WithResource(resource))
	explained := func(verb string, err error) error {
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return fmt.Errorf("the API server does not serve %s of %s: %w; Kubernetes 1.36 does", one.GetKind(), admissionv1.SchemeGroupVersion, err)
		}
		if apierrors.IsConflict(err) {
			return fmt.Errorf("%s %q: %w; take these fields over by --force-conflicts", one.GetKind(), one.GetName(), err)
		}
		return s.explain(verb, resource+"."+admissionv1.GroupName, err)
	}
	before, err := of.Get(ctx, one.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		before = nil
	case err != nil:
		return "", explained("get", err)
	}
	body, err := json.Marshal(one.Object)
	if err != nil {
		return "", err
	}
	after, err := of.Patch(ctx, one.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{
		DryRun: dryRun, FieldManager: fieldManager, Force: &f.force, FieldValidation: metav1.FieldValidationStrict,
	})
	switch {
	case err != nil:
		return "", explained("patch", err)
	case before == nil:
		return cluster.Created, nil
	case equality.Semantic.DeepEqual(before.Object["spec"], after.Object["spec"]) && equality.Semantic.DeepEqual(before.GetLabels(), after.GetLabels()):
		return cluster.Unchanged, nil
	}
	return cluster.Configured, nil
}

// noteLeft tells of policies that an earlier call has applied and that are not among these:
// they stay in force.
func (p *program) noteLeft(ctx context.Context, s *server, all []unstructured.Unstructured) error {
	for _, kind := range []string{"MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding"} {
		resource := policyResources[kind]
		there, err := s.policies.Resource(admissionv1.SchemeGroupVersion.WithResource(resource)).List(ctx, metav1.ListOptions{LabelSelector: policy.ManagedByLabel + "=" + policy.ManagedBy})
		if apierrors.IsNotFound(err) {
			continue // a server that has no such kind has none of them
		}
		if err != nil {
			return fmt.Errorf("all policies were applied; look for earlier ones: %w", s.explain("list", resource+"."+admissionv1.GroupName, err))
		}
		for i := range there.Items {
			name := there.Items[i].GetName()
			if slices.ContainsFunc(all, func(o unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name }) {
				continue
			}
			p.note("%s %s is still in force, and not among these; remove it by: kubectl delete %s/%s %s/%s", strings.TrimSuffix(kind, "Binding"), name,
				strings.TrimSuffix(strings.ToLower(kind), "binding"), name, strings.ToLower(kind), name)
		}
	}
	return nil
}
