package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/handler"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Images is the image store of the embedded backend.
type Images interface {
	// Underway returns the running pulls and imports, oldest first.
	Underway(ctx context.Context) []progress.Underway
	// Export writes images, by name or id, into one archive.
	Export(ctx context.Context, to io.Writer, images []string) error
	// ImportFor imports an archive for a handler, and returns the names of the imported images,
	// also with an error.
	ImportFor(ctx context.Context, from io.Reader, name string, d *handler.Definition) ([]string, error)
}

// archivePart is the size of an archive's part in one message, in bytes.
const archivePart = 1 << 20

func (s *service) images() (Images, error) {
	if s.o.Images == nil {
		return nil, fmt.Errorf("this daemon has no images of its own: %w", errdefs.ErrNotImplemented)
	}
	return s.o.Images, nil
}

func (s *service) ListPulls(ctx context.Context, _ *adminv1.ListPullsRequest) (*adminv1.ListPullsResponse, error) {
	images, err := s.images()
	if err != nil {
		return nil, err
	}
	resp := &adminv1.ListPullsResponse{}
	for _, p := range images.Underway(ctx) {
		m := &adminv1.Pull{Name: p.Name, Snapshotter: p.Snapshotter, BeganAt: stamp(p.Began)}
		for _, l := range p.Layers {
			m.Layers = append(m.Layers, &adminv1.PullLayer{Digest: l.Digest.String(), Size: l.Size, Fetched: l.Fetched, Stage: string(l.Stage)})
		}
		resp.Pulls = append(resp.Pulls, m)
	}
	return resp, nil
}

func (s *service) ExportImages(req *adminv1.ExportImagesRequest, to adminv1.Admin_ExportImagesServer) error {
	images, err := s.images()
	if err != nil {
		return err
	}
	if len(req.GetImages()) == 0 {
		return fmt.Errorf("images is empty; name at least one: %w", errdefs.ErrInvalidArgument)
	}
	w := bufio.NewWriterSize(archiveSender{to}, archivePart)
	if err := images.Export(to.Context(), w, req.GetImages()); err != nil {
		return err
	}
	return w.Flush()
}

// archiveSender is a Writer onto the stream.
type archiveSender struct {
	to adminv1.Admin_ExportImagesServer
}

func (s archiveSender) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, archivePart) {
		// gRPC may keep the message after Send returns.
		if err := s.to.Send(&adminv1.ExportImagesResponse{Data: bytes.Clone(part)}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (s *service) ImportImages(from adminv1.Admin_ImportImagesServer) error {
	images, err := s.images()
	if err != nil {
		return err
	}
	first, err := from.Recv()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("nothing was sent; send the archive, with the handler in the first message: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return err
	}
	h, err := s.o.Lifecycle.Handler(cmp.Or(first.GetHandler(), s.o.Lifecycle.Current().Default))
	if err != nil {
		return err
	}
	names, err := images.ImportFor(from.Context(), &archiveReceiver{from: from, rest: first.GetData()}, first.GetName(), h.Definition)
	if err != nil {
		if len(names) > 0 {
			err = fmt.Errorf("failed after the import of %q: %w", names, err)
		}
		return err
	}
	return from.SendAndClose(&adminv1.ImportImagesResponse{Names: names})
}

// archiveReceiver is a Reader from the stream.
type archiveReceiver struct {
	from adminv1.Admin_ImportImagesServer
	rest []byte
}

func (r *archiveReceiver) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.from.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
