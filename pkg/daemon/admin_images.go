package daemon

import (
	"context"
	"io"

	"github.com/berth-cri/berth/pkg/admin"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/handler"
)

// adminImages shows the engine's images to the management API.
type adminImages struct{ store *image.Store }

func imagesOf(e Engine) admin.Images {
	if store := e.Images(); store != nil {
		return adminImages{store}
	}
	return nil
}

func (a adminImages) Pulls(ctx context.Context) []admin.Pull {
	var pulls []admin.Pull
	for _, u := range a.store.Underway(ctx) {
		p := admin.Pull{Name: u.Name, Snapshotter: u.Snapshotter, Began: u.Began}
		for _, l := range u.Layers {
			p.Layers = append(p.Layers, admin.PullLayer{Digest: l.Digest.String(), Stage: string(l.Stage), Size: l.Size, Fetched: l.Fetched})
		}
		pulls = append(pulls, p)
	}
	return pulls
}

func (a adminImages) Export(ctx context.Context, to io.Writer, images []string) error {
	return a.store.Export(ctx, to, images)
}

func (a adminImages) Import(ctx context.Context, from io.Reader, name string, d *handler.Definition) ([]string, error) {
	wanted := image.PlatformOf(d)
	if wanted == image.NodePlatform {
		wanted = image.AnyPlatform // who has the archive knows what is in it
	}
	return a.store.Import(ctx, from, image.ImportRequest{Name: name, Snapshotter: d.Snapshotter, Platform: wanted})
}
