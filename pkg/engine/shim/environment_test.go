package shim

import (
	"slices"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestEnvironment(t *testing.T) {
	for name, tc := range map[string]struct{ environ, more, want []string }{
		"nothing":               {},
		"allowed variables":     {[]string{"PATH=/bin", "HOME=/root", "TMPDIR=/t", "TZ=UTC", "LANG=C", "LD_LIBRARY_PATH=/lib"}, nil, []string{"PATH=/bin", "HOME=/root", "TMPDIR=/t", "TZ=UTC", "LANG=C", "LD_LIBRARY_PATH=/lib"}},
		"the system bus":        {[]string{"DBUS_SYSTEM_BUS_ADDRESS=unix:path=/x", "DBUS_SESSION_BUS_ADDRESS=y"}, nil, []string{"DBUS_SYSTEM_BUS_ADDRESS=unix:path=/x"}},
		"variables of a family": {[]string{"LC_ALL=C.UTF-8", "LC_TIME=C", "LCX=1"}, nil, []string{"LC_ALL=C.UTF-8", "LC_TIME=C"}},
		"secrets":               {[]string{"HTTPS_PROXY=http://u:p@x", "https_proxy=http://u:p@x", "NO_PROXY=x", "AWS_SECRET_ACCESS_KEY=x", "REGISTRY_PASSWORD=x"}, nil, nil},
		"the service manager's": {[]string{"NOTIFY_SOCKET=/x", "LISTEN_FDS=1", "WATCHDOG_USEC=1", "INVOCATION_ID=1", "JOURNAL_STREAM=1:2"}, nil, nil},
		"Go's tuning":           {[]string{"GOMEMLIMIT=1GiB", "GOGC=10", "GODEBUG=x=1", "GOTRACEBACK=crash"}, nil, nil},
		"berth's own":           {[]string{"BERTH_SHIM_PATH=/x", "BERTH_FAILPOINT=x"}, nil, nil},
		"configured variables":  {[]string{"KATA_CONF_FILE=/x", "KATA_CONF=1"}, []string{"KATA_CONF_FILE"}, []string{"KATA_CONF_FILE=/x"}},
		"not a pair":            {[]string{"", "PATHS=1", "=PATH"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.environ)
			test.EqualLists(t, "the result", environment(tc.environ, tc.more...), tc.want)
			if !slices.Equal(before, tc.environ) {
				t.Errorf("environment changed its argument to %q", tc.environ)
			}
		})
	}
}
