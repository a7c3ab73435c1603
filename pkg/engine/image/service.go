package image

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
)

// Service is the CRI's image service over a Store. The handler of a call is the Definition in its
// context (handler.WithDefinition); without a Definition the store's default snapshotter is used.
// Errors carry errdefs classes. The text of a PullImage error must reach the kubelet with its
// beginning unchanged.
type Service struct {
	runtimeapi.UnimplementedImageServiceServer
	store *Store
}

// NewService returns the image service of a store.
func NewService(s *Store) *Service { return &Service{store: s} }

// ListImages lists every image once; with a filter, only the image that the filter names.
func (s *Service) ListImages(ctx context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	images, err := s.list(ctx, r.GetFilter())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ListImagesResponse{Images: images}, nil
}

// find looks up a name that may stand for images of several platforms. A request without a handler
// accepts any of them.
func (s *Service) find(ctx context.Context, spec *runtimeapi.ImageSpec) (*catalog.Image, error) {
	wanted := catalog.AnyPlatform
	if d := handler.DefinitionFrom(ctx); d != nil && spec.GetRuntimeHandler() != "" {
		wanted = catalog.PlatformOf(d)
	}
	return s.store.Find(spec.GetImage(), wanted)
}

func (s *Service) list(ctx context.Context, f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if f.GetImage().GetImage() != "" {
		img, err := s.find(ctx, f.GetImage())
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []*runtimeapi.Image{criImage(img)}, nil
	}
	var images []*runtimeapi.Image
	for _, img := range s.store.List() {
		images = append(images, criImage(img))
	}
	return images, nil
}

// ImageStatus describes an image. For a missing or incomplete image the response is empty.
func (s *Service) ImageStatus(ctx context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if _, err := imageOf(r.GetImage()); err != nil {
		return nil, err
	}
	img, err := s.find(ctx, r.GetImage())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if _, incomplete := s.store.puller.Incomplete.Load(img.ID); incomplete {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	resp := &runtimeapi.ImageStatusResponse{Image: criImage(img)}
	if r.GetVerbose() {
		if resp.Info, err = s.info(ctx, img); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// info is the part of the status that crictl inspecti prints in addition.
func (s *Service) info(ctx context.Context, img *catalog.Image) (map[string]string, error) {
	var shown any
	var err error
	switch unusable := img.Usable(); {
	case unusable != nil:
		shown = map[string]string{"unusable": unusable.Error()}
	case img.ArtifactType != "":
		shown, err = s.artifactInfo(ctx, img)
	default:
		var spec *imagespec.Image
		spec, err = s.store.catalog.Reader.Config(ctx, img)
		shown = struct {
			ChainID   digest.Digest    `json:"chainID"`
			ImageSpec *imagespec.Image `json:"imageSpec"`
		}{img.ChainID, spec}
	}
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(shown)
	return map[string]string{"info": string(text)}, err
}

func (s *Service) artifactInfo(ctx context.Context, img *catalog.Image) (any, error) {
	type file struct {
		Path   string        `json:"path,omitempty"`
		Digest digest.Digest `json:"digest"`
		Size   int64         `json:"size"`
	}
	files, err := s.store.catalog.Reader.ArtifactFiles(disk.InNamespace(ctx), img)
	shown := make([]file, len(files))
	for i, f := range files {
		shown[i] = file{Path: f.Path, Digest: f.Blob.Digest, Size: f.Blob.Size}
	}
	return map[string]any{"artifactType": img.ArtifactType, "files": shown}, err
}

// PlainHTTP is the gRPC header that sets pull.Request.PlainHTTP of a PullImage.
const PlainHTTP = "berth-plain-http"

// PullImage pulls and unpacks an image for the call's handler.
func (s *Service) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	if err := validate.PullImage(r); err != nil {
		return nil, err
	}
	req := pull.Request{Ref: r.GetImage().GetImage(), Auth: r.GetAuth()}
	// Pods cannot set this header: kubelets pass the values of a pod in the request.
	req.PlainHTTP = len(metadata.ValueFromIncomingContext(ctx, PlainHTTP)) > 0
	if d := handler.DefinitionFrom(ctx); d != nil {
		req.Snapshotter, req.Platform = d.Snapshotter, catalog.PlatformOf(d)
	}
	img, err := s.store.Pull(ctx, req)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: img.ID}, nil
}

// RemoveImage removes an image with all its names, even if it is pinned. A missing image is not an
// error.
func (s *Service) RemoveImage(ctx context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	ref, err := imageOf(r.GetImage())
	if err != nil {
		return nil, err
	}
	if err := s.store.Remove(ctx, ref); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo reports the directories and the disk usage of images and of writable layers: of two
// filesystems, if they do not share one (KEP-4191).
func (s *Service) ImageFsInfo(ctx context.Context, _ *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.store.makeRoom(ctx)
	images, writable := s.store.Meter.Usage()
	shared, err := sameFilesystem(s.store.files.Root, s.store.files.Writable)
	if err != nil {
		return nil, err
	}
	if shared {
		one := filesystemUsage(s.store.Root(), images.Add(writable))
		return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: one, ContainerFilesystems: one}, nil
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     filesystemUsage(s.store.Root(), images),
		ContainerFilesystems: filesystemUsage(s.store.files.Writable, writable),
	}, nil
}

func filesystemUsage(mountpoint string, u containerfs.Usage) []*runtimeapi.FilesystemUsage {
	return []*runtimeapi.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: mountpoint},
		UsedBytes:  &runtimeapi.UInt64Value{Value: u.Bytes},
		InodesUsed: &runtimeapi.UInt64Value{Value: u.Inodes},
	}}
}

func sameFilesystem(a, b string) (bool, error) {
	var first, second unix.Stat_t
	if err := unix.Stat(a, &first); err != nil {
		return false, fmt.Errorf("stat %s: %w", a, err)
	}
	if err := unix.Stat(b, &second); err != nil {
		return false, fmt.Errorf("stat %s: %w", b, err)
	}
	return first.Dev == second.Dev, nil
}

func imageOf(spec *runtimeapi.ImageSpec) (string, error) {
	if spec.GetImage() == "" {
		return "", fmt.Errorf("image.image is empty; set it to an image name: %w", errdefs.ErrInvalidArgument)
	}
	return spec.GetImage(), nil
}

func criImage(img *catalog.Image) *runtimeapi.Image {
	out := &runtimeapi.Image{
		Id:          img.ID,
		RepoTags:    img.RepoTags,
		RepoDigests: img.RepoDigests,
		Size:        img.Size,
		Pinned:      img.Pinned,
	}
	out.Uid, out.Username = imageUser(img.Config.User)
	return out
}

// imageUser splits the user of an image configuration ("user", "uid", either with ":group") into
// the fields of the CRI.
func imageUser(user string) (*runtimeapi.Int64Value, string) {
	user, _, _ = strings.Cut(user, ":")
	if uid, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &runtimeapi.Int64Value{Value: uid}, ""
	}
	return nil, user
}
