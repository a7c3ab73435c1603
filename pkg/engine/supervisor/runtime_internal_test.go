package supervisor

import (
	"context"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// The error of a call that hung has all that is needed to look further.
func TestAborted(t *testing.T) {
	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	o := &Options{Runtime: "/bin/runc", Root: "/run/runc"}
	for _, c := range []struct {
		verb, said string
		want, not  []string
	}{
		{"run", "", []string{"/bin/runc --root /run/runc run id", `"/bin/runc --root /run/runc --version" hangs too`, "container_create_timeout", "start_timeout", "it wrote no error"}, nil},
		{"delete", "waiting\n", []string{"/bin/runc --root /run/runc delete id", "it last wrote: waiting"}, []string{"container_create_timeout"}},
	} {
		err := (&call{options: o, args: []string{c.verb, "id"}}).aborted(late, []byte(c.said))
		test.Says(t, err, c.want...)
		for _, not := range c.not {
			if strings.Contains(err.Error(), not) {
				t.Errorf("%s: %q has %q", c.verb, err, not)
			}
		}
	}
}
