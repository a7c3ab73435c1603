package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

func TestVerdict(t *testing.T) {
	good, bad := row{handler: "runc"}, row{handler: "crun", err: errors.New("it broke")}
	stranger := row{handler: "kata", err: errors.New("no KVM")}
	for name, c := range map[string]struct {
		rows []row
		want string // part of the error; empty if the demo succeeds
	}{
		"two good":                             {[]row{good, {handler: "gvisor"}}, ""},
		"an optional handler may fail":         {[]row{good, {handler: "gvisor"}, stranger}, ""},
		"a required handler may not fail":      {[]row{good, {handler: "gvisor"}, bad}, "it broke"},
		"one handler is not enough":            {[]row{good}, "only 1"},
		"no handler is not enough":             {nil, "only 0"},
		"a failed optional one does not count": {[]row{good, stranger}, "only 1"},
	} {
		err := testbed.Run(t.Context(), "verdict", t.Output(), func(run testbed.T) { verdict(run, c.rows) })
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
