package sandbox

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestResolvConf(t *testing.T) {
	got := resolvConf(&runtimeapi.DNSConfig{Servers: []string{"10.0.0.1", "10.0.0.2"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5"}})
	test.Equal(t, "the result", got, "search a.b c\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n")
	test.Equal(t, "an empty configuration became", resolvConf(&runtimeapi.DNSConfig{}), "")
}
