package configuration

import (
	"strings"
	"testing"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestConfigDiffByKey(t *testing.T) {
	live := []*adminv1.Setting{{Key: "a", Value: "1", Origin: "/x:1"}, {Key: "b", Value: "2"}, {Key: "c", Value: "3", Origin: "/x:3"}}
	files := []*adminv1.Setting{{Key: "b", Value: "2"}, {Key: "c", Value: "4", Origin: "/y:1"}, {Key: "d", Value: "5", Origin: "/y:2"}}
	var lines []string
	for _, d := range configDiff(live, files) {
		lines = append(lines, d.String())
	}
	got := strings.Join(lines, "\n")
	if want := "~ c = 4 # running: 3; /y:1\n+ d = 5 # /y:2\n- a = 1 # running, from /x:1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
