package admin

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/config"
)

// An old name and today's are one key: what is set by both at once is refused.
func TestMergedKnowsFormerNames(t *testing.T) {
	for _, c := range []struct {
		set  []config.Setting
		want string // of the error
	}{
		{[]config.Setting{{Key: "next.percent", Value: "5"}}, ""},
		{[]config.Setting{{Key: "candidate.percent", Value: "5"}}, ""},
		{[]config.Setting{{Key: "next.percent", Value: "5"}, {Key: "candidate.percent", Value: "9"}}, "next.percent and candidate.percent are the same key"},
	} {
		got, err := merged([]config.Setting{{Key: "next.percent", Value: "1"}}, c.set, nil)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v", c.set, err)
			}
			continue
		}
		if err != nil || len(got) != 1 || got[0] != (config.Setting{Key: "candidate.percent", Value: "5"}) {
			t.Errorf("%v: %v, %v", c.set, got, err)
		}
	}
}
