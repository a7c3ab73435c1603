package runtimeclass

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

func pod(t *testing.T, spec, container string) *Pod {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p" + spec + "\n  containers:\n  - name: c\n    image: i\n" + container
	objects, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return objects[0].Pod
}

// What an API server would not take; all else is in testdata/fit.
func TestRequirements(t *testing.T) {
	for _, c := range []struct{ what, spec, container, want string }{
		{"nothing", "", "", ""},
		{"a request alone", "", "    resources: {requests: {hugepages-2Mi: 2Mi}}", `hugepages spec.containers[0].resources.requests["hugepages-2Mi"]: 2Mi`},
		{"requests beside limits", "", "    resources: {requests: {hugepages-2Mi: 2Mi}, limits: {cpu: 1}}", ""},
		{"what is nobody's", "", "    resources: {limits: {kubernetes.io/x: 1, requests.example.com/x: 1, x: 1}}", ""},
		{"devices of the pod", "\n  resources: {claims: [{name: gpu}]}", "", "devices spec.resources.claims[0]: gpu"},
		{"a profile of no type", "", "    securityContext: {seccompProfile: {}}", "seccomp spec.containers[0].securityContext.seccompProfile.type: "},
		{"a container for debugging", "\n  ephemeralContainers: [{name: e, image: i, securityContext: {privileged: true}}]", "", "privileged spec.ephemeralContainers[0].securityContext.privileged: true"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var all []string
			for _, r := range Requirements(pod(t, "}\nspec:"+c.spec, c.container+"\n").Pod) {
				all = append(all, fmt.Sprintf("%s %s", r.Capability, r))
			}
			if got := strings.Join(all, "; "); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestFit(t *testing.T) {
	table := func(i capability.Isolation, yes, no string) capability.Table {
		all := capability.Table{Isolation: i}
		for _, n := range strings.Fields(yes) {
			all.Set(capability.Name(n), capability.Yes, capability.Ran, "")
		}
		for _, n := range strings.Fields(no) {
			all.Set(capability.Name(n), capability.No, capability.Declared, "it says so")
		}
		return all
	}
	handlers := []Handler{
		{Name: "runc", Default: true, Overhead: measured(9, "2Mi", "1m"), Table: table(capability.SharedKernel, "host-network host-pid seccomp", "")},
		{Name: "crun", Overhead: measured(9, "1Mi", "1m"), Table: table(capability.SharedKernel, "host-network seccomp", "")},
		{Name: "gvisor", Overhead: measured(9, "20Mi", "9m"), Table: table(capability.UserSpaceKernel, "seccomp", "host-network host-pid")},
		{Name: "kata", Table: table(capability.VM, "seccomp", "host-network host-pid")},
		{Name: "other", Table: table("", "", "")},
		{Name: "broken", State: "not-ready", Reason: "it is gone", Table: table(capability.VM, "host-network host-pid seccomp", "")},
	}
	plain := pod(t, "}\nspec:", "")
	network := pod(t, "}\nspec:\n  hostNetwork: true\n  hostPID: true", "")
	for _, c := range []struct {
		what string
		pod  *Pod
		by   Preference
		want string
	}{
		{"any, the strongest first", plain, PreferIsolation, "kata=yes gvisor=yes crun=yes runc=yes other=yes broken=no"},
		{"any, the lightest first", plain, PreferOverhead, "crun=yes runc=yes gvisor=yes kata=yes other=yes broken=no"},
		{"host namespaces", network, PreferIsolation, "runc=yes crun=unknown other=unknown broken=no kata=no gvisor=no"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var all []string
			for _, v := range Fit(c.pod.Pod, handlers, nil, c.by) {
				all = append(all, fmt.Sprintf("%s=%s", v.Handler, v.Fits))
				if len(v.Reasons()) == 0 != (v.Fits == capability.Yes) {
					t.Errorf("%s: %s, and the reasons are %q", v.Handler, v.Fits, v.Reasons())
				}
			}
			if got := strings.Join(all, " "); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
	classes := append(class(t, "sandboxed", "handler: kata\n"), class(t, "vm", "handler: kata\n")...)
	for _, v := range Fit(network.Pod, handlers, classes, PreferIsolation) {
		switch v.Handler {
		case "kata":
			if got := strings.Join(v.Reasons(), "\n"); got != "spec.hostNetwork: true needs host-network, but the handler does not support it: it says so\nspec.hostPID: true needs host-pid, but the handler does not support it: it says so" || strings.Join(v.Classes, " ") != "sandboxed vm" {
				t.Errorf("kata: %v: %s", v.Classes, got)
			}
		case "crun":
			if got := strings.Join(v.Reasons(), "\n"); got != "spec.hostPID: true needs host-pid, but the handler may not support it" {
				t.Errorf("crun: %s", got)
			}
		case "broken":
			if got := strings.Join(v.Reasons(), "\n"); got != "the handler is not-ready: it is gone" {
				t.Errorf("broken: %s", got)
			}
		}
	}
}
