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
		want string // of the error; empty is success
	}{
		"two good":                {[]row{good, {handler: "gvisor"}}, ""},
		"a stranger may fail":     {[]row{good, {handler: "gvisor"}, stranger}, ""},
		"a required one may not":  {[]row{good, {handler: "gvisor"}, bad}, "it broke"},
		"one is not enough":       {[]row{good}, "only 1"},
		"none is not enough":      {nil, "only 0"},
		"a stranger is no second": {[]row{good, stranger}, "only 1"},
	} {
		err := testbed.Run(t.Context(), "verdict", t.Output(), func(run testbed.T) { verdict(run, c.rows) })
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
