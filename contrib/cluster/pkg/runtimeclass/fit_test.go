package runtimeclass

import (
	"fmt"
	"strings"
	"testing"
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

// TestRequirements has cases that are not in testdata/fit, such as pods that a server would refuse.
func TestRequirements(t *testing.T) {
	for _, c := range []struct{ what, spec, container, want string }{
		{"nothing", "", "", ""},
		{"only a request", "", "    resources: {requests: {hugepages-2Mi: 2Mi}}", `hugepages spec.containers[0].resources.requests["hugepages-2Mi"]: 2Mi`},
		{"a request without its limit", "", "    resources: {requests: {hugepages-2Mi: 2Mi}, limits: {cpu: 1}}", ""},
		{"resources that are not devices", "", "    resources: {limits: {kubernetes.io/x: 1, requests.example.com/x: 1, x: 1}}", ""},
		{"devices of the pod", "\n  resources: {claims: [{name: gpu}]}", "", "devices spec.resources.claims[0]: gpu"},
		{"a profile without a type", "", "    securityContext: {seccompProfile: {}}", "seccomp spec.containers[0].securityContext.seccompProfile.type: "},
		{"an ephemeral container", "\n  ephemeralContainers: [{name: e, image: i, securityContext: {privileged: true}}]", "", "privileged spec.ephemeralContainers[0].securityContext.privileged: true"},
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
