package remote

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

var imageLists = listingOf(runtimeapi.ImageService_ListImages_FullMethodName, runtimeapi.ImageService_StreamImages_FullMethodName, &runtimeapi.ListImagesResponse{})

var imageNames = wire.ImageHandlers(&runtimeapi.ListImagesResponse{})[0]

// images passes on calls about the daemon's images.
type images struct {
	*caller
	names     *names
	lastKnown *lastknown.Images
	save      func() error
	// timeout is how long a client of a list waits for the daemon.
	timeout time.Duration
	// conflict holds why the daemon must not be used, nil if it may be used; see Backend.
	conflict *atomic.Pointer[string]
	creating *atomic.Int64
}

func (i images) ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	req = proto.CloneOf(req)
	if f := req.GetFilter(); f != nil {
		f.Image = i.names.spec(f.GetImage())
	}
	f, err := i.all(ctx, req, wantsAll(req, req.GetFilter()))
	return carried[runtimeapi.ListImagesResponse](i.names.rename(f, imageNames), err)
}

// all returns the daemon's list. If whole is set, the last known list replaces it while the daemon
// lags or fails to list, and a daemon in conflict has an empty list.
func (i images) all(ctx context.Context, req *runtimeapi.ListImagesRequest, whole bool) (wire.Frame, error) {
	if !whole {
		return i.whole(ctx, imageLists, req)
	}
	if i.conflict.Load() != nil {
		return nil, nil
	}
	last, known := i.lastKnown.Last()
	if known && i.monitor.current().Phase == Lagging {
		return last, nil
	}
	wait, cancel := context.WithTimeout(ctx, timeoutWithin(ctx, i.timeout))
	defer cancel()
	turn := i.lastKnown.Mark()
	f, err := i.whole(wait, imageLists, req)
	switch {
	case err == nil:
		i.saveChanged(ctx, i.lastKnown.Take(f, turn))
		return f, nil
	case known && ctx.Err() == nil:
		if !unresponsive(ctx, err) {
			log.G(ctx).WithError(err).WithField("backend", i.name).Warn("Backend image list failed; serving last known images")
		}
		return last, nil
	}
	return nil, err
}

// saveChanged writes the state file if changed is set.
func (i images) saveChanged(ctx context.Context, changed bool) {
	if !changed {
		return
	}
	if err := i.save(); err != nil {
		log.G(ctx).WithError(err).WithField("backend", i.name).Warn("Failed to save last known images of backend; they are not listed if both daemons restart")
	}
}

var imageStatusNames = wire.ImageHandlers(&runtimeapi.ImageStatusResponse{})

func (i images) ImageStatus(ctx context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	req = proto.CloneOf(req)
	req.Image = i.names.spec(req.GetImage())
	return passRenamed[runtimeapi.ImageStatusResponse](ctx, i.caller, i.names, imageStatusNames, runtimeapi.ImageService_ImageStatus_FullMethodName, req)
}

func (i images) PullImage(ctx context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	i.creating.Add(1)
	defer i.creating.Add(-1)
	req = proto.CloneOf(req)
	req.Image = i.names.spec(req.GetImage())
	return read[runtimeapi.PullImageResponse](ctx, i.caller, runtimeapi.ImageService_PullImage_FullMethodName, req)
}

func (i images) RemoveImage(ctx context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	name := req.GetImage().GetImage()
	req = proto.CloneOf(req)
	req.Image = i.names.spec(req.GetImage())
	resp, err := pass[runtimeapi.RemoveImageResponse](ctx, i.caller, runtimeapi.ImageService_RemoveImage_FullMethodName, req)
	if err == nil {
		i.saveChanged(ctx, i.lastKnown.Removed(name))
	}
	return resp, err
}

// ImageFsInfo returns the daemon's filesystems, or the last known ones while it does not answer:
// they still exist, and a kubelet measures their free space itself.
func (i images) ImageFsInfo(ctx context.Context, req *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	last := i.lastKnown.LastFilesystems()
	if last != nil && i.monitor.current().Phase == Lagging {
		return last, nil
	}
	wait, cancel := context.WithTimeout(ctx, timeoutWithin(ctx, i.timeout))
	defer cancel()
	resp, err := read[runtimeapi.ImageFsInfoResponse](wait, i.caller, runtimeapi.ImageService_ImageFsInfo_FullMethodName, req)
	switch {
	case err == nil:
		i.saveChanged(ctx, i.lastKnown.TakeFilesystems(resp))
	case last != nil && unresponsive(ctx, err):
		return last, nil
	}
	return resp, err
}
