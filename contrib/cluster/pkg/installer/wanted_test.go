package installer

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// The options of a runtime cannot set keys of other tables, on which the removal relies.
func TestOptionsOfAnotherTable(t *testing.T) {
	for _, options := range []string{"[server]\nsocket = \"/run/x.sock\"", "[engine]\nroot = \"/data/berth\"", "[runtimes.runc]\nruntime_path = \"/x\"", "max_pods = "} {
		w := Wanted{Version: "1.0.0", Runtimes: []Runtime{{Handler: "crun", Kind: "crun", Version: "1", Source: "/x", Options: options}}}
		test.Fails(t, w.Validate(), "%q is accepted", options)
	}
	w := Wanted{Version: "1.0.0", Runtimes: []Runtime{{Handler: "crun", Kind: "crun", Version: "1", Source: "/x", Options: "max_pods = 40\noptions.global_flags = [\"--x\"]"}}}
	test.Check(t, w.Validate())
}
