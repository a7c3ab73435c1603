package runtimeclass

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate is what the API server has against a new RuntimeClass, in its words.
func Validate(c *nodev1.RuntimeClass) field.ErrorList {
	meta := c.ObjectMeta
	meta.Namespace = "" // which it drops, for classes have none
	all := apivalidation.ValidateObjectMeta(&meta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if c.Overhead != nil {
		all = append(all, validateOverhead(c.Overhead.PodFixed, field.NewPath("overhead"))...)
	}
	if c.Scheduling != nil {
		all = append(all, validateScheduling(c.Scheduling, field.NewPath("scheduling"))...)
	}
	return append(all, validateHandler(c.Handler, field.NewPath("handler"))...)
}

// ValidateUpdate is what it has against a change of one, beside Validate.
func ValidateUpdate(to, from *nodev1.RuntimeClass) field.ErrorList {
	if to.Handler == from.Handler {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("handler"), nil, apivalidation.FieldImmutableErrorMsg)}
}

// Invalid is the API server's whole answer to an object with errors.
func Invalid(c *nodev1.RuntimeClass, errs field.ErrorList) string {
	return apierrors.NewInvalid(nodev1.SchemeGroupVersion.WithKind("RuntimeClass").GroupKind(), c.Name, errs).Error()
}

func validateHandler(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var all field.ErrorList
	for _, text := range content.IsDNS1123Label(name) {
		all = append(all, field.Invalid(at, name, text))
	}
	return all
}

// validateOverhead holds the overhead against the rules for a container's limits,
// and so the server names a field that there is not.
func validateOverhead(overhead corev1.ResourceList, at *field.Path) field.ErrorList {
	var all field.ErrorList
	huge, ordinary := false, false
	for _, name := range sorted(overhead) {
		quantity, key := overhead[name], at.Child("limits").Key(string(name))
		all = append(all, validateResource(name, key)...)
		if quantity.Sign() < 0 {
			all = append(all, field.Invalid(key, quantity.String(), apivalidation.IsNegativeErrorMsg))
		}
		if extended(name) && quantity.MilliValue()%1000 != 0 {
			all = append(all, field.Invalid(key, quantity, "must be an integer"))
		}
		if isHuge(name) {
			huge = true
			if !wholePages(name, quantity) {
				all = append(all, field.Invalid(key, quantity.String(), fmt.Sprintf("%s is not positive integer multiple of %s", quantity.String(), name)))
			}
		}
		ordinary = ordinary || name == corev1.ResourceCPU || name == corev1.ResourceMemory
	}
	if huge && !ordinary {
		all = append(all, field.Forbidden(at, "HugePages require cpu or memory"))
	}
	return all
}

func validateResource(name corev1.ResourceName, at *field.Path) field.ErrorList {
	var all field.ErrorList
	for _, text := range validation.IsQualifiedName(string(name)) {
		all = append(all, field.Invalid(at, name, text))
	}
	standard := slices.Contains([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}, name) || isHuge(name)
	switch domain := strings.Contains(string(name), "/"); {
	case !domain && !standard:
		if len(all) == 0 && !ofQuota(name) {
			all = append(all, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
		}
		all = append(all, field.Invalid(at, name, "must be a standard resource for containers"))
	case domain && !native(name) && !extended(name):
		all = append(all, field.Invalid(at, name, "doesn't follow extended resource name standard"))
	}
	return all
}

// ofQuota are names without a domain that mean something, though not in a pod.
func ofQuota(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) || slices.Contains([]corev1.ResourceName{
		corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers, corev1.ResourceSecrets, corev1.ResourceConfigMaps,
		corev1.ResourcePersistentVolumeClaims, corev1.ResourceStorage, corev1.ResourcePods, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	}, name)
}

func native(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func extended(name corev1.ResourceName) bool {
	return !native(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

func isHuge(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func wholePages(name corev1.ResourceName, quantity resource.Quantity) bool {
	page, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	return err == nil && page.Sign() > 0 && page.MilliValue()%1000 == 0 && quantity.Value()%page.Value() == 0
}

func validateScheduling(s *nodev1.Scheduling, at *field.Path) field.ErrorList {
	var all field.ErrorList
	if s.NodeSelector != nil {
		all = metav1validation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector"))
	}
	seen := map[corev1.Toleration]bool{}
	for i, t := range s.Tolerations {
		one := at.Child("tolerations").Index(i)
		all = append(all, validateToleration(t, one)...)
		key := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
		if seen[key] {
			all = append(all, field.Duplicate(one, shownToleration(t)))
		}
		seen[key] = true
	}
	return all
}

// shownToleration is how the server writes one into a text.
func shownToleration(t corev1.Toleration) any {
	return struct {
		Key               string
		Operator          corev1.TolerationOperator
		Value             string
		Effect            corev1.TaintEffect
		TolerationSeconds *int64
	}{t.Key, t.Operator, t.Value, t.Effect, t.TolerationSeconds}
}

func validateToleration(t corev1.Toleration, at *field.Path) field.ErrorList {
	var all field.ErrorList
	if t.Key != "" {
		all = append(all, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
	} else if t.Operator != corev1.TolerationOpExists {
		all = append(all, field.Invalid(at.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		all = append(all, field.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		if problems := validation.IsValidLabelValue(t.Value); len(problems) > 0 {
			all = append(all, field.Invalid(at.Child("operator"), t.Value, strings.Join(problems, ";")))
		}
	case corev1.TolerationOpExists:
		if t.Value != "" {
			all = append(all, field.Invalid(at.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		all = append(all, field.NotSupported(at.Child("operator"), t.Operator,
			[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt}))
	default:
		all = append(all, field.NotSupported(at.Child("operator"), t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if t.Effect != "" && !slices.Contains(effects, t.Effect) {
		all = append(all, field.NotSupported(at.Child("effect"), t.Effect, effects))
	}
	return all
}

func sorted(l corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for n := range l {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
