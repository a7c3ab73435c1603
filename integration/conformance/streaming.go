package conformance

import (
	"net/url"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var streamingChecks = []check{
	{name: "Exec, Attach and PortForward answer URLs, or all are Unimplemented", run: streamingURLs},
}

func streamingURLs(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	urls := map[string]string{}
	absent := 0
	answer := func(name, u string, err error) {
		if status.Code(err) == codes.Unimplemented {
			absent++
			return
		}
		must(t, err, name)
		urls[name] = u
	}
	e, err := n.Runtime.Exec(call(t), &runtimeapi.ExecRequest{ContainerId: c.ID, Cmd: []string{"true"}, Stdout: true})
	answer("Exec", e.GetUrl(), err)
	a, err := n.Runtime.Attach(call(t), &runtimeapi.AttachRequest{ContainerId: c.ID, Stdout: true})
	answer("Attach", a.GetUrl(), err)
	f, err := n.Runtime.PortForward(call(t), &runtimeapi.PortForwardRequest{PodSandboxId: p.ID, Port: []int32{80}})
	answer("PortForward", f.GetUrl(), err)
	if absent != 0 && absent != 3 {
		t.Errorf("%d of 3 are Unimplemented: half of streaming is no streaming", absent)
	}
	for name, u := range urls {
		if parsed, err := url.Parse(u); err != nil || parsed.Hostname() == "" || parsed.Port() == "" || parsed.Port() == "0" {
			t.Errorf("%s answered %q: %v", name, u, err)
		}
	}
}
