package node

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/doctor"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestFailedStarts(t *testing.T) {
	for name, c := range map[string]struct {
		starts *adminv1.Starts
		level  doctor.Level // empty: no finding
		text   string
	}{
		"none yet":      {nil, "", ""},
		"good":          {&adminv1.Starts{Recent: 7}, doctor.OK, "handler runc: 0 of the last 7 starts failed"},
		"one failed":    {&adminv1.Starts{Recent: 7, Failed: 1, InARow: 1, Error: "no network"}, doctor.Warn, "1 of the last 7 starts failed, the last one: no network"},
		"good again":    {&adminv1.Starts{Recent: 7, Failed: 3, Error: "no network"}, doctor.OK, "3 of the last 7 starts failed"},
		"they all fail": {&adminv1.Starts{Recent: 7, Failed: 6, InARow: 6, Error: "no network"}, doctor.Fail, "6 of the last 7"},
	} {
		found := failedStarts([]*adminv1.Handler{{Name: "runc", Starts: c.starts}})
		if c.level == "" {
			if len(found) > 0 {
				t.Errorf("%s: %+v", name, found)
			}
			continue
		}
		if len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].Text, c.text) || (found[0].Next == "") != (c.level == doctor.OK) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
