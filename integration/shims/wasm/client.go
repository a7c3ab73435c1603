package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/berth-cri/berth/integration/shims"
)

// moduleTypes are the media types of layers with modules: the defaults of runwasi
// (containerd-shim-wasm/src/shim/shim.rs, supported_layers_types), and that of Spin.
var moduleTypes = []string{
	"application/vnd.bytecodealliance.wasm.component.layer.v0+wasm", "application/wasm",
	"application/vnd.wasm.content.layer.v1+wasm",
}

// maxWrite is the limit of data in one message. The source of this, and of everything in this file,
// is containerd-shim-wasm/src/containerd/client.rs.
const maxWrite = 15 << 20

// keepContent is the prefix of labels with references to content that garbage collection must keep.
const keepContent = "containerd.io/gc.ref.content.precompile."

// daemon has clients of the daemon that started the shim.
type daemon struct {
	namespace  string
	containers containersapi.ContainersClient
	images     imagesapi.ImagesClient
	content    contentapi.ContentClient
	leases     leasesapi.LeasesClient
}

func dial(address, namespace string) (*daemon, error) {
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	return &daemon{
		namespace: namespace, containers: containersapi.NewContainersClient(conn), images: imagesapi.NewImagesClient(conn),
		content: contentapi.NewContentClient(conn), leases: leasesapi.NewLeasesClient(conn),
	}, nil
}

func (d *daemon) with(ctx context.Context, pairs ...string) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(append(pairs, "containerd-namespace", d.namespace)...))
}

// compiler compiles a module, so that the engine starts it faster.
type compiler func(ctx context.Context, module []byte) ([]byte, error)

// loaded is a module of an image, with its compiled form if there is one.
type loaded struct {
	module, compiled []byte
}

// modules returns the modules that the image of a container has as layers: load_modules. Without
// any, the shim searches the root filesystem.
func (d *daemon) modules(ctx context.Context, id string, compile compiler) ([]loaded, error) {
	ctx = d.with(ctx)
	container, err := d.containers.Get(ctx, &containersapi.GetContainerRequest{ID: id})
	if err != nil {
		return nil, fmt.Errorf("container: %w", err)
	}
	target, manifest, err := d.manifest(ctx, container.GetContainer().GetImage())
	if err != nil {
		return nil, err
	}
	config, err := d.read(ctx, manifest.Config.Digest)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var platform imagespec.Platform
	if err := json.Unmarshal(config, &platform); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if platform.Architecture != "wasm" {
		return nil, nil
	}
	layers := slices.DeleteFunc(manifest.Layers, func(l imagespec.Descriptor) bool { return !slices.Contains(moduleTypes, l.MediaType) })
	if len(layers) == 0 {
		return nil, nil
	}
	info, err := d.info(ctx, target)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	_, done := info.GetLabels()[shims.PrecompiledLabel]
	var all []loaded
	for _, layer := range layers {
		l, err := d.precompiled(ctx, layer.Digest)
		if err != nil {
			log.G(ctx).WithError(err).Info("no precompiled layer")
			done = false
			if l.module, err = d.read(ctx, layer.Digest); err != nil {
				return nil, fmt.Errorf("layer: %w", err)
			}
		}
		all = append(all, l)
	}
	if done {
		return all, nil
	}
	for i, layer := range layers {
		if all[i].compiled != nil {
			continue
		}
		if all[i].compiled, err = compile(ctx, all[i].module); err != nil {
			return nil, fmt.Errorf("compile %s: %w", layer.Digest, err)
		}
		if err := d.keep(ctx, target, layer.Digest, all[i].compiled, i); err != nil {
			return nil, fmt.Errorf("store the compiled form of %s: %w", layer.Digest, err)
		}
	}
	return all, nil
}

// manifest reads the manifest of an image, which must not be an index:
// get_image_manifest_and_digest.
func (d *daemon) manifest(ctx context.Context, image string) (digest.Digest, imagespec.Manifest, error) {
	var m imagespec.Manifest
	got, err := d.images.Get(ctx, &imagesapi.GetImageRequest{Name: image})
	if err != nil {
		return "", m, fmt.Errorf("image %q: %w", image, err)
	}
	target := digest.Digest(got.GetImage().GetTarget().GetDigest())
	text, err := d.read(ctx, target)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil && m.Config.Digest == "" {
		err = errors.New("the image is an index")
	}
	if err != nil {
		return "", m, fmt.Errorf("manifest of image %q: %w", image, err)
	}
	return target, m, nil
}

// precompiled reads a layer that was compiled before, and its compiled form:
// read_precompiled_layer.
func (d *daemon) precompiled(ctx context.Context, layer digest.Digest) (loaded, error) {
	info, err := d.info(ctx, layer)
	if err != nil {
		return loaded{}, err
	}
	kept, ok := info.GetLabels()[shims.PrecompiledLabel]
	if !ok {
		return loaded{}, errors.New("precompiled layer not found")
	}
	var l loaded
	if l.compiled, err = d.read(ctx, digest.Digest(kept)); err != nil {
		return loaded{}, err
	}
	l.module, err = d.read(ctx, layer)
	return l, err
}

// keep writes a layer's compiled form under a lease, and labels the layer and the image with it.
func (d *daemon) keep(ctx context.Context, target, layer digest.Digest, compiled []byte, i int) error {
	ref := "precompile-" + shims.PrecompiledLabel
	lease, err := d.leases.Create(ctx, &leasesapi.CreateRequest{ID: ref, Labels: map[string]string{
		"containerd.io/gc.expire": time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339),
	}})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	defer func() {
		if _, err := d.leases.Delete(ctx, &leasesapi.DeleteRequest{ID: lease.GetLease().GetID()}); err != nil {
			log.G(ctx).WithError(err).Warn("remove lease")
		}
	}()
	kept, err := d.write(d.with(ctx, "containerd-lease", lease.GetLease().GetID()), ref, compiled,
		map[string]string{shims.PrecompiledLabel + "/original": layer.String()})
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	reference := fmt.Sprint(keepContent, i)
	if err := d.label(ctx, layer, map[string]string{shims.PrecompiledLabel: kept.String(), reference: kept.String()}); err != nil {
		return fmt.Errorf("label the layer: %w", err)
	}
	if err := d.label(ctx, target, map[string]string{shims.PrecompiledLabel: "true", reference: kept.String()}); err != nil {
		return fmt.Errorf("label the image: %w", err)
	}
	return nil
}

func (d *daemon) info(ctx context.Context, of digest.Digest) (*contentapi.Info, error) {
	got, err := d.content.Info(ctx, &contentapi.InfoRequest{Digest: of.String()})
	return got.GetInfo(), err
}

func (d *daemon) read(ctx context.Context, what digest.Digest) ([]byte, error) {
	stream, err := d.content.Read(ctx, &contentapi.ReadContentRequest{Digest: what.String()})
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, part.GetData()...)
	}
}

// label adds labels to content, by replacing all of its labels.
func (d *daemon) label(ctx context.Context, of digest.Digest, more map[string]string) error {
	info, err := d.info(ctx, of)
	if err != nil {
		return err
	}
	if info.Labels == nil {
		info.Labels = map[string]string{}
	}
	maps.Copy(info.Labels, more)
	_, err = d.content.Update(ctx, &contentapi.UpdateRequest{Info: info, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels"}}})
	return err
}

// write is save_content: a STAT for the offset, WRITEs of parts, and a COMMIT with the labels.
func (d *daemon) write(ctx context.Context, ref string, data []byte, labels map[string]string) (digest.Digest, error) {
	expected := digest.FromBytes(data)
	stream, err := d.content.Write(ctx)
	if err != nil {
		return "", err
	}
	ask := func(r *contentapi.WriteContentRequest) (*contentapi.WriteContentResponse, error) {
		if err := stream.Send(r); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return stream.Recv()
	}
	now, err := ask(&contentapi.WriteContentRequest{Action: contentapi.WriteAction_STAT, Ref: ref, Expected: expected.String()})
	if status.Code(err) == codes.AlreadyExists {
		return expected, nil
	}
	if err != nil {
		return "", err
	}
	size := int64(len(data))
	for offset := now.GetOffset(); offset < size; {
		end := min(offset+maxWrite, size)
		if _, err := ask(&contentapi.WriteContentRequest{Action: contentapi.WriteAction_WRITE, Offset: offset, Data: data[offset:end]}); err != nil {
			return "", err
		}
		offset = end
	}
	got, err := ask(&contentapi.WriteContentRequest{
		Action: contentapi.WriteAction_COMMIT, Total: size, Offset: size, Expected: expected.String(), Labels: labels,
	})
	if err != nil {
		return "", err
	}
	if got.GetOffset() != size || got.GetDigest() != expected.String() {
		return "", fmt.Errorf("committed %d bytes of %s, not %d of %s", got.GetOffset(), got.GetDigest(), size, expected)
	}
	return expected, nil
}
