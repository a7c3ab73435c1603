package admin_test

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc/codes"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// A daemon whose engine cannot measure says so, and tells all else as ever.
func TestWithoutAMeter(t *testing.T) {
	b := newBed(t)
	stream, err := b.MeasureOverhead(t.Context(), &adminv1.MeasureOverheadRequest{Name: "runc", Pods: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if errors.Is(err, io.EOF) {
		t.Fatal("it measured something")
	}
	if e := b.failure(err); e.Code != codes.Unimplemented {
		t.Errorf("got %v: %s", e.Code, e.Text)
	}
	if h, err := b.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "runc"}); err != nil || h.GetOverhead() != nil {
		t.Errorf("%v, %v", h, err)
	}
}
