package kubelet

import (
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// top watches the cluster by "kubectl berth top", on a terminal and without one, with
// all rights, with some and without any, and while the API server goes away.
func (b *bed) top(t *testing.T, n *Namespace) {
	server := &Server{b.Cluster}
	var away atomic.Bool
	front := server.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				panic(http.ErrAbortHandler)
			}
			pass.ServeHTTP(w, r)
		})
	})
	command := func(kubeconfig string, arguments ...string) *exec.Cmd {
		c := b.kubectlCommand(t.Context(), t, append([]string{"berth", "top"}, arguments...)...)
		c.Env = append(c.Env, "KUBECONFIG="+kubeconfig, "TERM=xterm-256color")
		return c
	}
	guest := server.Kubeconfig(t, Guest, "")

	var mistakes strings.Builder
	nothing := command(guest)
	nothing.Stderr = &mistakes
	var exit *exec.ExitError
	if err := nothing.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 || testbed.Showing(`you need the verb "list" on "nodes"`)(mistakes.String()) != nil {
		t.Errorf("without rights: %v: %s", err, mistakes.String())
	}

	s := testbed.StartOnTerminal(t, command(server.Kubeconfig(t, Admin, front), "--every=1s"), 140, 40)
	const took = `>?\d+(\.\d+)?m?s`
	s.Shows(t, testbed.Showing(`1 of 1 node ready`, `(?m)^crun +1 +1 `, `(?m)^runsc +1 +1 `, `p95 of the CRI's calls, by node, in the last \d+`, `(?m)^`+NodeName+` +Ready `))
	n.Create(t, `
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {runtimeClassName: gvisor, containers: [{name: c, image: IMAGE, command: [sleep, "600"]}]}
`)
	s.Shows(t, testbed.Showing(`(?m)^runsc +1 +1 +[1-9]\d* +\d+ +[1-9]\d* +0 +`+took, `(?m)^`+NodeName+` +Ready +[1-9]\d* +[1-9]\d* +`+took+` +\S+ +`+took+` +`+took))
	away.Store(true)
	s.Shows(t, testbed.Showing(`the API server is away since \d\d:\d\d:\d\d .* trying again every 1s: cannot reach the API server`, `(?m)^runsc +1 +1 `))
	away.Store(false)
	s.Shows(t, testbed.Hiding("is away"))
	s.Quits(t)

	page, err := command(b.Kubeconfig()).Output()
	if err := errors.Join(err, testbed.Showing(`since the kubelets' starts`, `(?m)^runsc +1 +1 +[1-9]\d* +\d+ +- +- +`+took, `(?m)^`+NodeName+` +Ready`)(string(page))); err != nil || strings.Contains(string(page), "\x1b") {
		t.Errorf("in a pipe: %v: %q", err, page)
	}
	n.Kubectl(t, "create", "clusterrole", "top-lists", "--verb=list", "--resource=nodes,pods,runtimeclasses.node.k8s.io")
	n.Kubectl(t, "create", "clusterrolebinding", "top-lists", "--clusterrole=top-lists", "--user="+Guest)
	t.Cleanup(func() { n.Kubectl(t, "delete", "clusterrolebinding/top-lists", "clusterrole/top-lists") })
	testbed.Eventually(t, patience, func() error {
		page, err := command(guest).CombinedOutput()
		return errors.Join(err, testbed.Showing(`1 kubelet not counted \(`+NodeName+`\): .*you need the verb "get" on "nodes/proxy"`, `(?m)^runsc +1 +1 +[1-9]\d* +\d+ +- +- +-`)(string(page)))
	})
}
