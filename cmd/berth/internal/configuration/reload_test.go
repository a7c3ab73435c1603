package configuration

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// The exit status reports the state after a reload, even if the reload changed nothing.
func TestExitStatusOfAReload(t *testing.T) {
	mistake := []*adminv1.Problem{{File: "/etc/x", Line: 1, Message: "is wrong"}}
	for name, c := range map[string]struct {
		resp *adminv1.ReloadResponse
		want int
	}{
		"nothing to do":               {&adminv1.ReloadResponse{Accepted: true}, 0},
		"a handler that was changed":  {&adminv1.ReloadResponse{Accepted: true, Changes: []string{"handler x: changed"}}, 0},
		"a handler that is not ready": {&adminv1.ReloadResponse{Accepted: true, NotReady: []string{"x"}}, commandline.Degraded},
		"accepted with problems":      {&adminv1.ReloadResponse{Accepted: true, Problems: mistake}, commandline.Degraded},
		"refused":                     {&adminv1.ReloadResponse{Problems: mistake}, commandline.Mistaken},
		"refused, and not ready":      {&adminv1.ReloadResponse{Problems: mistake, NotReady: []string{"x"}}, commandline.Mistaken},
	} {
		t.Run(name, func(t *testing.T) {
			test.Equal(t, "the exit status", commandline.Status(reloadEnd(c.resp)), c.want)
		})
	}
}

// Without --wait, no output format shows an outcome.
func TestReloadThatIsNotWaitedFor(t *testing.T) {
	resp := &adminv1.ReloadResponse{Generation: 7, Digest: "abc"}
	for form, want := range map[string]string{
		"table": "generation 7 stays in use until the files are read", "wide": "generation 7 stays in use until the files are read", "json": `"generation": "7"`, "yaml": `generation: "7"`,
	} {
		var out bytes.Buffer
		if err := showRequest(&out, form, resp); err != nil || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "accepted") {
			t.Errorf("%s: %v\n%s", form, err, out.String())
		}
		if form == "json" && !json.Valid(out.Bytes()) {
			t.Errorf("not JSON: %s", out.String())
		}
	}
}
