package runtimeclass

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// rule lists what requests a capability: fields of the pod, then fields of each of its containers.
// The first match is shown.
type rule struct {
	capability capability.Name
	pod        []ask
	containers []ask
}

// rules is shared by Requirements, which evaluates it here, and Expressions, which translates it
// for an API server, so that both decide alike.
var rules = []rule{
	{capability: capability.HostNetwork, pod: []ask{equals("spec.hostNetwork", true)}},
	{capability: capability.HostPID, pod: []ask{equals("spec.hostPID", true)}},
	{capability: capability.HostIPC, pod: []ask{equals("spec.hostIPC", true)}},
	{capability: capability.UserNamespaces, pod: []ask{equals("spec.hostUsers", false)}},
	// This also applies to a pod without volumes: the kubelet mounts some into every pod.
	{capability: capability.IDMappedMounts, pod: []ask{equals("spec.hostUsers", false)}},
	{
		capability: capability.Devices,
		pod:        []ask{first("spec.resourceClaims", "name"), quantity("spec.resources", ofPlugin), first("spec.resources.claims", "name")},
		containers: []ask{quantity("resources", ofPlugin), first("resources.claims", "name")},
	},
	{
		capability: capability.HugePages,
		pod:        []ask{eachBegins("spec.volumes", "emptyDir.medium", string(corev1.StorageMediumHugePages)), quantity("spec.resources", hugePages)},
		containers: []ask{quantity("resources", hugePages)},
	},
	{capability: capability.Sysctls, pod: []ask{first("spec.securityContext.sysctls", "name")}},
	{
		capability: capability.SELinux,
		pod:        []ask{labels("spec.securityContext.seLinuxOptions")}, containers: []ask{labels("securityContext.seLinuxOptions")},
	},
	{capability: capability.Privileged, containers: []ask{equals(privileged, true)}},
	{capability: capability.Seccomp, containers: []ask{seccomp()}},
	{capability: capability.AppArmor, containers: []ask{appArmor()}},
	{capability: capability.UnmaskedProc, containers: []ask{equals("securityContext.procMount", string(corev1.UnmaskedProcMount))}},
	{capability: capability.RecursiveReadOnlyMounts, containers: []ask{eachBegins("volumeMounts", "recursiveReadOnly", string(corev1.RecursiveReadOnlyEnabled))}},
	{capability: capability.MountPropagation, containers: []ask{eachBegins("volumeMounts", "mountPropagation", string(corev1.MountPropagationBidirectional))}},
	{capability: capability.BlockVolumes, containers: []ask{first("volumeDevices", "devicePath")}},
	{
		capability: capability.Exec,
		containers: []ask{
			command("startupProbe.exec"), command("livenessProbe.exec"), command("readinessProbe.exec"),
			command("lifecycle.postStart.exec"), command("lifecycle.preStop.exec"),
		},
	},
}

// Asked returns the capabilities that pods can request, in the order of the rules.
func Asked() []capability.Name {
	var all []capability.Name
	for _, r := range rules {
		all = append(all, r.capability)
	}
	return all
}

// containerLists are the pod's lists of containers in the order of their start. Containers of the
// last list are added to running pods.
var containerLists = []string{"initContainers", "containers", debugContainers}

const debugContainers = "ephemeralContainers"

// privileged is a path in a container.
const privileged = "securityContext.privileged"

// ask is a way to request a capability, in Go and in the Common Expression Language (CEL) that API
// servers evaluate. An expression is a list of "field: value", of which only the first is shown.
type ask struct {
	find       func(place) (field, value string, asked bool)
	expression func(site) string
}

type place struct {
	// at is the path in the pod; empty for the pod itself.
	at     string
	object any
	pod    map[string]any
}

func (p place) field(path string) string { return join(p.at, path) }

// site is a place in a CEL expression.
type site struct {
	// at is an expression for the object's path in the pod; empty for the pod itself.
	at     string
	object string
}

// The sites of the pod, of variables.asking (see Expression), and of a container.
var (
	podSite       = site{object: "variables.pod"}
	askingSite    = site{object: "variables.asking"}
	containerSite = site{at: "c.at", object: "c.object"}
)

// optional returns an expression of a field that may be missing.
func (s site) optional(path string) string {
	return s.object + ".?" + strings.ReplaceAll(path, ".", ".?")
}

// pathText returns an expression of a field's path followed by text.
func (s site) pathText(text string) string {
	if s.at == "" {
		return Quote(text)
	}
	return s.at + " + " + Quote("."+text)
}

// equals matches a bool or string field that has a value.
func equals[T bool | string](path string, want T) ask {
	written, missing := fmt.Sprint(want), "''"
	literal := Quote(written)
	if yes, is := any(want).(bool); is {
		literal, missing = written, fmt.Sprint(!yes)
	}
	return ask{
		find: func(p place) (string, string, bool) {
			return p.field(path), written, lookup(p.object, path) == any(want)
		},
		expression: func(s site) string {
			return fmt.Sprintf("(%s.orValue(%s) == %s ? [%s] : [])", s.optional(path), missing, literal, s.pathText(path+": "+written))
		},
	}
}

// first matches the first item of a list, and shows a field of it.
func first(list, shown string) ask {
	return ask{
		find: func(p place) (string, string, bool) {
			items, _ := lookup(p.object, list).([]any)
			if len(items) == 0 {
				return "", "", false
			}
			return p.field(list) + "[0]", textAt(items[0], shown), true
		},
		expression: func(s site) string {
			return fmt.Sprintf("[%s.orValue([])].filter(l, l.size() > 0).map(l, %s + string(l[0].?%s.orValue('')))", s.optional(list), s.pathText(list+"[0]: "), shown)
		},
	}
}

// eachBegins matches items of a list with a field that begins with a prefix.
func eachBegins(list, path, prefix string) ask {
	return ask{
		find: func(p place) (string, string, bool) {
			items, _ := lookup(p.object, list).([]any)
			for i, item := range items {
				if value := textAt(item, path); strings.HasPrefix(value, prefix) {
					return fmt.Sprintf("%s[%d].%s", p.field(list), i, path), value, true
				}
			}
			return "", "", false
		},
		expression: func(s site) string {
			value := fmt.Sprintf("string(%s.orValue(''))", site{object: "v"}.optional(path))
			return fmt.Sprintf("%s.orValue([]).transformList(i, v, %s.startsWith(%s), %s + string(i) + %s + %s)",
				s.optional(list), value, Quote(prefix), s.pathText(list+"["), Quote("]."+path+": "), value)
		},
	}
}

// resourceKind selects resources by name.
type resourceKind struct {
	has        func(name string) bool
	expression string // uses k
}

var (
	hugePages = resourceKind{func(name string) bool { return strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) }, "k.startsWith('" + corev1.ResourceHugePagesPrefix + "')"}
	// ofPlugin matches resources of device plugins. Admission refuses invalid names.
	ofPlugin = resourceKind{
		func(name string) bool {
			return strings.Contains(name, "/") && !strings.Contains(name, corev1.ResourceDefaultNamespacePrefix) && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix)
		},
		"k.contains('/') && !k.contains('" + corev1.ResourceDefaultNamespacePrefix + "') && !k.startsWith('" + corev1.DefaultResourceRequestsPrefix + "')",
	}
)

// mostResources is the limit of checked resources. No real pod has more. Thousands would take an
// API server long, which its cost estimate ignores.
const mostResources = 500

// quantity matches the first resource of a kind, by name, with a quantity other than 0. If a
// container has limits, they must include resources that cannot be overcommitted.
func quantity(path string, kind resourceKind) ask {
	return ask{
		find: func(p place) (string, string, bool) {
			of := "limits"
			if limits, _ := lookup(p.object, path+".limits").(map[string]any); len(limits) == 0 {
				of = "requests"
			}
			all, _ := lookup(p.object, path+"."+of).(map[string]any)
			if len(all) > mostResources {
				return p.field(path) + "." + of, tooMany, true
			}
			var names []string
			for name, amount := range all {
				if kind.has(name) && fmt.Sprint(amount) != "0" {
					names = append(names, name)
				}
			}
			if len(names) == 0 {
				return "", "", false
			}
			name := slices.Min(names)
			return fmt.Sprintf("%s.%s[%q]", p.field(path), of, name), fmt.Sprint(all[name]), true
		},
		expression: func(s site) string {
			all := s.optional(path)
			return fmt.Sprintf("[%s.?limits.orValue({}).size() > 0 ? 'limits' : 'requests'].map(w, [%s[?w].orValue({})].map(m, m.size() > %d ? [%s + w + %s] : "+
				"[m.filter(k, %s && string(m[k]) != '0')].filter(l, l.size() > 0).map(l, %s + w + '[\"' + l.min() + '\"]: ' + string(m[l.min()])))[0])[0]",
				all, all, mostResources, s.pathText(path+"."), Quote(": "+tooMany), kind.expression, s.pathText(path+"."))
		},
	}
}

var tooMany = fmt.Sprintf("more than %d resources", mostResources)

// labels matches SELinux options unless all are empty.
func labels(path string) ask {
	return ask{
		find: func(p place) (string, string, bool) {
			var all []string
			for _, option := range []string{"user", "role", "type", "level"} {
				all = append(all, textAt(p.object, path+"."+option))
			}
			return p.field(path), strings.Join(all, ":"), slices.ContainsFunc(all, func(s string) bool { return s != "" })
		},
		expression: func(s site) string {
			return fmt.Sprintf("[['user', 'role', 'type', 'level'].map(o, string(%s[?o].orValue('')))].filter(l, l.exists(o, o != '')).map(l, %s + l.join(':'))",
				s.optional(path), s.pathText(path+": "))
		},
	}
}

// command matches a probe or hook that runs in the container.
func command(path string) ask {
	return ask{
		find: func(p place) (string, string, bool) {
			words, _ := lookup(p.object, path+".command").([]any)
			var all []string
			for _, word := range words {
				all = append(all, fmt.Sprint(word))
			}
			return p.field(path), strings.Join(all, " "), lookup(p.object, path) != nil
		},
		expression: func(s site) string {
			of := s.optional(path)
			return fmt.Sprintf("(%s.hasValue() ? [%s + %s.?command.orValue([]).join(' ')] : [])", of, s.pathText(path+": "), of)
		},
	}
}

// profileOf returns the type of a container's profile and its field, which is the container's or
// else the pod's.
func profileOf(p place, name string) (field, kind string) {
	at := "securityContext." + name
	if lookup(p.object, at) != nil {
		return p.field(at) + ".type", textAt(p.object, at+".type")
	}
	if lookup(p.pod, "spec."+at) != nil {
		return "spec." + at + ".type", textAt(p.pod, "spec."+at+".type")
	}
	return "", ""
}

// profileExpression is profileOf in CEL: a list of field and type, or otherwise if there is no
// profile.
func profileExpression(s site, name, otherwise string) string {
	at := "securityContext." + name
	own, pods := s.optional(at), podSite.optional("spec."+at)
	return fmt.Sprintf("%s.hasValue() ? [%s, string(%s.?type.orValue(''))] : %s.hasValue() ? [%s, string(%s.?type.orValue(''))] : %s",
		own, s.pathText(at+".type"), own, pods, Quote("spec."+at+".type"), pods, otherwise)
}

// seccomp matches a profile, which a privileged container does not have, even if one is set.
func seccomp() ask {
	const none = string(corev1.SeccompProfileTypeUnconfined)
	return ask{
		find: func(p place) (string, string, bool) {
			field, kind := profileOf(p, "seccompProfile")
			return field, kind, field != "" && kind != none && lookup(p.object, privileged) != true
		},
		expression: func(s site) string {
			return fmt.Sprintf("[%s].filter(p, p[1] != %s && !%s.orValue(false)).map(p, p[0] + ': ' + p[1])",
				profileExpression(s, "seccompProfile", "['', '"+none+"']"), Quote(none), s.optional(privileged))
		},
	}
}

// appArmor matches a profile. A Localhost profile applies to a privileged container, too. The older
// annotation has other values than the field.
func appArmor() ask {
	const (
		local, standard = string(corev1.AppArmorProfileTypeLocalhost), string(corev1.AppArmorProfileTypeRuntimeDefault)
		key, none       = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix, corev1.DeprecatedAppArmorBetaProfileNameUnconfined
		localPrefix     = corev1.DeprecatedAppArmorBetaProfileNamePrefix
	)
	return ask{
		find: func(p place) (string, string, bool) {
			isPrivileged := lookup(p.object, privileged) == true
			if field, kind := profileOf(p, "appArmorProfile"); field != "" {
				return field, kind, kind == local || kind == standard && !isPrivileged
			}
			name := key + textAt(p.object, "name")
			annotations, _ := lookup(p.pod, "metadata.annotations").(map[string]any)
			old, _ := annotations[name].(string)
			return fmt.Sprintf("metadata.annotations[%q]", name), old, old != "" && old != none && (strings.HasPrefix(old, localPrefix) || !isPrivileged)
		},
		expression: func(s site) string {
			name := Quote(key) + " + " + s.object + ".name"
			otherwise := fmt.Sprintf("['metadata.annotations[\"' + %s + '\"]', string(%s[?%s].orValue(''))]", name, podSite.optional("metadata.annotations"), name)
			return fmt.Sprintf("[%s].filter(p, p[1] == %s || p[1].startsWith(%s) || !(p[1] in ['', 'Unconfined', %s]) && !%s.orValue(false)).map(p, p[0] + ': ' + p[1])",
				profileExpression(s, "appArmorProfile", otherwise), Quote(local), Quote(localPrefix), Quote(none), s.optional(privileged))
		},
	}
}
