package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/doctor"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// A failed check suppresses only the finding of the handler that it names. Paths are not compared,
// because handlers that forward to another daemon have none.
func TestNotReady(t *testing.T) {
	already := []doctor.Finding{
		{Level: doctor.Fail, Text: "net.ipv4.ip_forward is 0: pods cannot reach other nodes"},
		{Level: doctor.Fail, Text: `handler "kata" cannot run pods: /opt/kata-next does not exist`},
	}
	found := notReady([]*adminv1.Handler{
		{Name: "crio", State: adminv1.State_STATE_NOT_READY, Reason: "its socket does not exist"},
		{Name: "kata", State: adminv1.State_STATE_NOT_READY, Path: "/opt/kata-next"},
		{Name: "kata-old", State: adminv1.State_STATE_NOT_READY, Path: "/opt/kata", Reason: "its probe failed"},
		{Name: "runc", State: adminv1.State_STATE_READY, Path: "/usr/bin/runc"},
	}, already)
	var texts []string
	for _, f := range found {
		texts = append(texts, f.Text)
	}
	want := []string{"handler crio is not ready: its socket does not exist", "handler kata-old is not ready: its probe failed"}
	if !slices.Equal(texts, want) {
		t.Errorf("found %q, want %q", texts, want)
	}
}

func TestFailedStarts(t *testing.T) {
	for name, c := range map[string]struct {
		starts *adminv1.Starts
		level  doctor.Level // empty: no finding
		text   string
	}{
		"no starts":            {nil, "", ""},
		"none failed":          {&adminv1.Starts{Recent: 7}, doctor.OK, "handler runc: 0 of the last 7 starts failed"},
		"the last one failed":  {&adminv1.Starts{Recent: 7, Failed: 1, InARow: 1, Error: "no network"}, doctor.Warn, "1 of the last 7 starts failed, the last one: no network"},
		"failed earlier":       {&adminv1.Starts{Recent: 7, Failed: 3, Error: "no network"}, doctor.OK, "3 of the last 7 starts failed"},
		"many in a row failed": {&adminv1.Starts{Recent: 7, Failed: 6, InARow: 6, Error: "no network"}, doctor.Fail, "6 of the last 7"},
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
