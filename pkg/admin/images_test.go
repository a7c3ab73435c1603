package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/admin"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/handler"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// archives fakes the image store. It exports content.
type archives struct {
	content []byte
	// imported is the last imported archive; name and handler are those of the request.
	imported      []byte
	name, handler string
	fails         error
}

func (*archives) Underway(context.Context) []progress.Underway {
	return []progress.Underway{{Name: "a:1", Snapshotter: "overlayfs", Began: time.Unix(1, 0), Layers: []progress.LayerProgress{{Digest: "sha256:1", Size: 10, Fetched: 7, Stage: "fetching"}}}}
}

func (a *archives) Export(_ context.Context, to io.Writer, images []string) error {
	if images[0] == "nothing" {
		return fmt.Errorf("image %q is not on this node: %w", images[0], errdefs.ErrNotFound)
	}
	for part := a.content; len(part) > 0; {
		n := min(len(part), 700_000) // not a multiple of the size of messages
		if _, err := to.Write(part[:n]); err != nil {
			return err
		}
		part = part[n:]
	}
	return nil
}

func (a *archives) ImportFor(_ context.Context, from io.Reader, name string, d *handler.Definition) ([]string, error) {
	var err error
	a.name, a.handler = name, d.Name
	if a.imported, err = io.ReadAll(from); err != nil {
		return nil, err
	}
	return []string{"a:1", "b:1"}, a.fails
}

func send(t *testing.T, b *bed, messages ...*adminv1.ImportImagesRequest) ([]string, error) {
	t.Helper()
	stream := test.Value(b.ImportImages(t.Context()))(t)
	for _, m := range messages {
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	resp, err := stream.CloseAndRecv()
	return resp.GetNames(), err
}

func TestArchives(t *testing.T) {
	a := &archives{content: bytes.Repeat([]byte("0123456789"), 300_000)}
	b := newBedWith(t, func(o *admin.Options) { o.Images = a })
	stream := test.Value(b.ExportImages(t.Context(), &adminv1.ExportImagesRequest{Images: []string{"a:1"}}))(t)
	var got []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		test.Must(t, err)
		got = append(got, m.GetData()...)
	}
	if !bytes.Equal(got, a.content) {
		t.Errorf("got %d bytes, want the %d bytes of the archive", len(got), len(a.content))
	}

	names, err := send(t, b, &adminv1.ImportImagesRequest{Name: "x:1", Data: a.content[:3]}, &adminv1.ImportImagesRequest{Data: a.content[3:10]}, &adminv1.ImportImagesRequest{}, &adminv1.ImportImagesRequest{Data: a.content[10:20]})
	if err != nil || strings.Join(names, " ") != "a:1 b:1" || !bytes.Equal(a.imported, a.content[:20]) || a.name != "x:1" || a.handler != "runc" {
		t.Errorf("imported %q, %v: %q as %q for %q", names, err, a.imported, a.name, a.handler)
	}
	pulls, err := b.ListPulls(t.Context(), &adminv1.ListPullsRequest{})
	if err != nil || len(pulls.GetPulls()) != 1 || pulls.GetPulls()[0].GetLayers()[0].GetFetched() != 7 || pulls.GetPulls()[0].GetBeganAt().GetSeconds() != 1 {
		t.Errorf("the pulls are %v, %v", pulls, err)
	}

	a.fails = fmt.Errorf("the archive is not whole: %w", errdefs.ErrInvalidArgument)
	for what, c := range map[string]struct {
		call func() error
		code codes.Code
		says string
	}{
		"failed import":   {func() error { _, err := send(t, b, &adminv1.ImportImagesRequest{}); return err }, codes.InvalidArgument, `failed after the import of ["a:1" "b:1"]`},
		"no message":      {func() error { _, err := send(t, b); return err }, codes.InvalidArgument, "nothing was sent"},
		"unknown handler": {func() error { _, err := send(t, b, &adminv1.ImportImagesRequest{Handler: "rnuc"}); return err }, codes.NotFound, "rnuc"},
		"export without a name": {func() error {
			stream, err := b.ExportImages(t.Context(), &adminv1.ExportImagesRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}, codes.InvalidArgument, "images is empty"},
		"export of a missing image": {func() error {
			stream, err := b.ExportImages(t.Context(), &adminv1.ExportImagesRequest{Images: []string{"nothing"}})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		}, codes.NotFound, "not on this node"},
	} {
		if err := c.call(); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestWithoutImages(t *testing.T) {
	b := newBed(t)
	if _, err := b.ListPulls(t.Context(), &adminv1.ListPullsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("ListPulls without an image store: %v", err)
	}
}
