// Package policy generates admission policies from the capabilities of handlers:
//
//	rules, err := policy.ParseRules("rules.yaml", text)  // the error has file, line and key of each mistake
//	all, err := policy.Generate(policy.Options{Classes: classes, Handlers: handlers, Rules: rules})
//
// A ValidatingAdmissionPolicy refuses pods that the handler of their class cannot run, for the same
// reasons as fit; a MutatingAdmissionPolicy gives a class to pods without one, by rules. API
// servers evaluate the policies without a webhook: they contain all data that they need.
//
// It is pure. The requirements of pods are in pkg/runtimeclass, in one table for policies and fit.
package policy

import (
	"fmt"
	"maps"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Names of policies, and of their bindings.
const (
	// Refuse refuses pods that the handler of their class cannot run.
	Refuse = "berth-refuse"
	// Warn warns of pods if it is unknown whether the handler can run them.
	Warn = "berth-warn"
	// Workloads checks the pods of a workload when it is created or changed.
	Workloads = "berth-workloads"
	// Choose gives a class to pods without one.
	Choose = "berth-choose"
	// Classes warns when a class that Choose gives is deleted, or created with another handler.
	Classes = "berth-classes"
)

// The label of all generated objects, and its value.
const (
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "kubectl-berth"
)

// Answer is the treatment of workloads with pods that would be refused.
type Answer string

// Answers.
const (
	WarnWorkloads   Answer = "warn"
	DenyWorkloads   Answer = "deny"
	IgnoreWorkloads Answer = "ignore"
)

// Answers lists all answers.
var Answers = []Answer{WarnWorkloads, DenyWorkloads, IgnoreWorkloads}

// System lists namespaces that are exempt by default: they contain pods that run on every node,
// with or without berth.
var System = []string{"berth-system", "kube-system", "node-feature-discovery"}

// Options are the inputs of the policies.
type Options struct {
	Classes []runtimeclass.Class
	// Handlers take precedence over the annotations of classes.
	Handlers []runtimeclass.Handler
	// Default is the handler of pods without a class. If it is empty, the default of Handlers or of
	// the classes is used; pods without a class are then never refused, and only warned about,
	// because nodes may have different defaults.
	Default string
	// State means that handlers that take no pods are not chosen, and their pods are refused.
	State     bool
	Rules     []Rule
	Workloads Answer
	// Exempt are namespaces with pods that no policy checks.
	Exempt []string
}

// Generate returns the policies and then their bindings, in the order of application. A policy has
// no effect before its binding, and the policy that chooses classes precedes those that refuse: an
// interrupted application refuses no pod that the complete one would accept.
func Generate(o Options) ([]runtime.Object, error) {
	all, err := known(o)
	if err != nil {
		return nil, err
	}
	picks, err := choices(all, o)
	if err != nil {
		return nil, err
	}
	var made []pair
	if len(picks) > 0 {
		made = append(made, choosePolicy(all, o, picks), classesPolicy(o.given(all)))
	}
	pods := []admissionv1.RuleWithOperations{
		rule("", []string{"pods"}, admissionv1.Create),
		rule("", []string{"pods/ephemeralcontainers"}, admissionv1.Update),
	}
	var v variables
	v.needs("dyn(object)", all, relevant(all, o, false), true)
	v.set("class", "variables.pod.?spec.?runtimeClassName.orValue('')")
	v.reasons(all, o, true)
	matched := constraints(pods, o)
	made = append(made, validatingPolicy(Refuse, matched, v, admissionv1.Deny, verdict("variables.refused.size() == 0"), notMirror))
	if slices.ContainsFunc(all, func(c class) bool { return len(c.lacks(capability.Unknown)) > 0 }) {
		made = append(made, validatingPolicy(Warn, matched, v, admissionv1.Warn, verdict("variables.refused.size() > 0 || variables.unknown.size() == 0"), notMirror))
	}
	if o.Workloads != IgnoreWorkloads {
		made = append(made, workloadsPolicy(all, o, picks))
	}
	var policies, bindings []runtime.Object
	for _, one := range made {
		if err := one.variables.tooLarge(); err != nil {
			return nil, err
		}
		policies, bindings = append(policies, one.policy), append(bindings, one.binding)
	}
	return append(policies, bindings...), nil
}

type pair struct {
	policy, binding runtime.Object
	variables       variables
}

// relevant returns the capabilities that some class is not known to have or, if choosing, that a
// rule selects pods by.
func relevant(all []class, o Options, choosing bool) []capability.Name {
	var names []capability.Name
	for _, name := range runtimeclass.Asked() {
		lacked := slices.ContainsFunc(all, func(c class) bool { return c.handler.Of(name).Answer != capability.Yes })
		asked := choosing && slices.ContainsFunc(o.Rules, func(r Rule) bool { return slices.Contains(r.Pods.Asks, name) })
		if lacked || asked {
			names = append(names, name)
		}
	}
	return names
}

// choosePolicy generates the policy that gives pods a class.
func choosePolicy(all []class, o Options, picks []string) pair {
	var v variables
	v.needs("dyn(object)", all, relevant(all, o, true), false)
	v.choice(all, picks)
	// A pod that rules did not check might run without the isolation that it needs.
	fail := admissionv1.Fail
	return pair{
		variables: v,
		policy: &admissionv1.MutatingAdmissionPolicy{
			TypeMeta: typeMeta("MutatingAdmissionPolicy"), ObjectMeta: meta(Choose),
			Spec: admissionv1.MutatingAdmissionPolicySpec{
				MatchConstraints: constraints([]admissionv1.RuleWithOperations{rule("", []string{"pods"}, admissionv1.Create)}, o),
				MatchConditions: []admissionv1.MatchCondition{
					notMirror,
					{Name: "without-a-class", Expression: "!has(object.spec.runtimeClassName)"},
				},
				Variables: v, FailurePolicy: &fail,
				// The RuntimeClass admission sets overhead and a selector again after the first
				// round, but not after the second: a pod that got its class in the second would be
				// refused or misplaced.
				ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
				Mutations: []admissionv1.Mutation{{
					PatchType: admissionv1.PatchTypeJSONPatch,
					JSONPatch: &admissionv1.JSONPatch{Expression: "variables.chosen == '' ? [] : [JSONPatch{op: 'add', path: '/spec/runtimeClassName', value: variables.chosen}]"},
				}},
			},
		},
		binding: &admissionv1.MutatingAdmissionPolicyBinding{
			TypeMeta: typeMeta("MutatingAdmissionPolicyBinding"), ObjectMeta: meta(Choose),
			Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: Choose},
		},
	}
}

// notMirror excludes mirror pods: the kubelet runs a static pod even if its mirror pod is refused.
var notMirror = admissionv1.MatchCondition{Name: "not-a-mirror", Expression: "!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))"}

// workloadsPolicy generates the policy for workloads. It skips objects with a controller, because
// the controller has the same template, and updates that do not change the template.
func workloadsPolicy(all []class, o Options, picks []string) pair {
	const (
		template = "dyn(object).kind == 'CronJob' ? dyn(object).spec.jobTemplate.spec.template : dyn(object).spec.?template.orValue({})"
		old      = "dyn(oldObject).kind == 'CronJob' ? dyn(oldObject).spec.jobTemplate.spec.template : dyn(oldObject).spec.?template.orValue({})"
	)
	name := "variables.pod.?spec.?runtimeClassName.orValue('')"
	var v variables
	v.needs(template, all, relevant(all, o, len(picks) > 0), false)
	if len(picks) > 0 {
		v.choice(all, picks)
		name = "variables.pod.?spec.?runtimeClassName.orValue(variables.chosen)"
	}
	v.set("class", name)
	v.reasons(all, o, false)
	operations := []admissionv1.OperationType{admissionv1.Create, admissionv1.Update}
	matched := []admissionv1.RuleWithOperations{
		rule("", []string{"replicationcontrollers"}, operations...),
		rule("apps", []string{"daemonsets", "deployments", "replicasets", "statefulsets"}, operations...),
		rule("batch", []string{"cronjobs", "jobs"}, operations...),
	}
	conditions := []admissionv1.MatchCondition{
		{Name: "not-made-by-another", Expression: "!object.metadata.?ownerReferences.orValue([]).exists(r, r.?controller.orValue(false))"},
		{Name: "new-template", Expression: fmt.Sprintf("request.operation == 'CREATE' || (%s) != (%s)", template, old)},
	}
	action, expression := admissionv1.Warn, "variables.refused.size() + variables.unknown.size() == 0"
	if o.Workloads == DenyWorkloads {
		action, expression = admissionv1.Deny, "variables.refused.size() == 0"
	}
	return validatingPolicy(Workloads, constraints(matched, o), v, action, verdict(expression), conditions...)
}

// classesPolicy generates the policy that warns if a class that rules give is deleted: pods are
// then refused, and not run without a class, because a rule may require isolation. The policy also
// warns if such a class is created with another handler, because that may isolate differently.
func classesPolicy(given map[string]string) pair {
	matched := constraints([]admissionv1.RuleWithOperations{rule("node.k8s.io", []string{"runtimeclasses"}, admissionv1.Create, admissionv1.Delete)}, Options{})
	quoted := map[string]string{}
	for name, handler := range given {
		quoted[name] = quote(handler)
	}
	return validatingPolicy(Classes, matched, nil, admissionv1.Warn, []admissionv1.Validation{
		{
			Expression: "request.operation != 'DELETE' || !(oldObject.metadata.name in " + list(slices.Sorted(maps.Keys(given))) + ")",
			Message:    "the policy " + Choose + " gives pods this class, and they are refused without it; apply the policies again without the class: \"kubectl berth policy --rules FILE | kubectl apply --server-side -f -\"",
		}, {
			Expression: "request.operation != 'CREATE' || " + mapping(quoted) + "[?object.metadata.name].orValue(object.handler) == object.handler",
			Message:    "the policy " + Choose + " gives pods this class because of the isolation of another handler; apply the policies again: \"kubectl berth policy --rules FILE | kubectl apply --server-side -f -\"",
		},
	})
}

// verdict returns the validation of the pod's class.
func verdict(expression string) []admissionv1.Validation {
	reason := metav1.StatusReasonForbidden
	return []admissionv1.Validation{{
		Expression: expression, MessageExpression: "variables.message", Reason: &reason,
		Message: "the handler of the pod's class does not support what the pod asks for; see \"kubectl berth fit\"",
	}}
}

func validatingPolicy(name string, matched *admissionv1.MatchResources, v variables, action admissionv1.ValidationAction, validations []admissionv1.Validation, conditions ...admissionv1.MatchCondition) pair {
	// A pod that was not checked is refused by its node, or fails on it.
	ignore := admissionv1.Ignore
	return pair{
		variables: v,
		policy: &admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: typeMeta("ValidatingAdmissionPolicy"), ObjectMeta: meta(name),
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: matched, MatchConditions: conditions, Variables: v, FailurePolicy: &ignore,
				Validations: validations,
			},
		},
		binding: &admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: typeMeta("ValidatingAdmissionPolicyBinding"), ObjectMeta: meta(name),
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{action}},
		},
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: kind}
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{ManagedByLabel: ManagedBy}}
}

func rule(group string, resources []string, operations ...admissionv1.OperationType) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: operations,
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}
}

func constraints(rules []admissionv1.RuleWithOperations, o Options) *admissionv1.MatchResources {
	m := &admissionv1.MatchResources{}
	for _, r := range rules {
		m.ResourceRules = append(m.ResourceRules, admissionv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	if len(o.Exempt) > 0 {
		m.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: o.Exempt,
		}}}
	}
	return m
}

// Unstructured returns objects as they are sent, without the fields that only the server sets.
func Unstructured(objects []runtime.Object) ([]map[string]any, error) {
	var all []map[string]any
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", o, err)
		}
		delete(fields, "status")
		all = append(all, fields)
	}
	return all, nil
}
