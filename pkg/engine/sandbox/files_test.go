package sandbox

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestResolvConf(t *testing.T) {
	got := resolvConf(&runtimeapi.DNSConfig{Servers: []string{"10.0.0.1", "10.0.0.2"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5"}})
	if want := "search a.b c\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got := resolvConf(&runtimeapi.DNSConfig{}); got != "" {
		t.Errorf("an empty configuration became %q", got)
	}
}
