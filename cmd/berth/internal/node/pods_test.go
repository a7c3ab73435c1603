package node

import (
	"strings"
	"testing"
	"unicode/utf8"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestPodsFitAnOrdinaryTerminal(t *testing.T) {
	long := strings.Repeat("p", 253)
	pods := []*adminv1.Pod{{Id: long, Namespace: long, Name: long, Handler: long, Containers: 1000, Pin: &adminv1.Pin{
		Digest: long, Generation: 1 << 40, Binaries: []*adminv1.Binary{{Path: "/" + long, Version: long}},
	}}}
	for line := range strings.Lines(podTable(pods, false).Text(80)) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
	if !podTable(pods, true).Whole {
		t.Error("the wide table is cut")
	}
}
