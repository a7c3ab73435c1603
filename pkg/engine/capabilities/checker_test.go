package capabilities

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestMayUseHostNetwork(t *testing.T) {
	oci := func(config string, flags ...string) handler.Definition {
		return handler.Definition{Type: handler.OCI, ConfigPath: config, OCI: handler.OCIOptions{GlobalFlags: flags}}
	}
	for _, c := range []struct {
		d    handler.Definition
		want bool
	}{
		{oci(""), false},
		{oci("", "--network=host"), true},
		{oci("", "-network=host"), true},
		{oci("", "--debug", "--network", "host"), true},
		{oci("", "--network=sandbox"), false},
		{oci("", "--network", "none", "host"), false},
		{oci("", "--network"), false},
		{oci("", "--network-raw=host"), false},
		{oci("/etc/runsc.toml"), true},
		{oci("/etc/runsc.toml", "--network=none"), false},
		{handler.Definition{Type: handler.Shim, ConfigPath: "/c"}, false},
	} {
		test.Equal(t, fmt.Sprintf("%s %q %s", c.d.Type, c.d.ConfigPath, strings.Join(c.d.OCI.GlobalFlags, " ")), mayUseHostNetwork(&c.d), c.want)
	}
}
