package handlers

import (
	"bytes"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// The output of a runtime is shown line by line, indented, with control characters escaped.
func TestLastFailureOfAHandler(t *testing.T) {
	var out bytes.Buffer
	resp := &adminv1.GetHandlerResponse{Handler: &adminv1.Handler{Name: "runc"}, LastFailure: "first\nsecond\x1b[2J\n"}
	test.Must(t, showHandler(&out, resp, false))
	if want := "last failure:\n  first\n  second\\u001b[2J\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want it to end with %q", out.String(), want)
	}
}
