// Package artifact pushes checkpoints of pods to registries and pulls them, as OCI artifacts: the
// manifest of a checkpoint is the artifact's configuration, and each file is an unmodified layer.
//
// A checkpoint contains every secret in its pod's memory: all readers of the repository get them.
package artifact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/beneath"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// Media types of checkpoints.
const (
	artifactType = "application/vnd.berth.pod-checkpoint.v1"
	configType   = "application/vnd.berth.pod-checkpoint.manifest.v1+json"
	fileType     = "application/vnd.berth.pod-checkpoint.file.v1"
)

const (
	// maxConfig limits the manifest of a checkpoint, as manifest.Read does.
	maxConfig = 16 << 20
	// maxManifest limits the manifest of the artifact.
	maxManifest = 4 << 20
)

// Registry configures the access to registries.
type Registry struct {
	// HostsDir contains the registries' hosts.toml files; empty if there are none.
	HostsDir string
	// User and Secret are credentials for the registry in the name, not its mirrors; empty means none.
	User, Secret string
	// PlainHTTP disables TLS for the registry unless its hosts.toml sets a scheme.
	PlainHTTP bool
	// Progress is called before each blob is sent and each file is read. It must be set.
	Progress func(name string, size int64)
}

// client returns a client that sends the credentials only to the registry in ref.
func (r Registry) client(ctx context.Context, ref string) *registry.Client {
	creds, _ := registry.ParseAuth(&runtimeapi.AuthConfig{Username: r.User, Password: r.Secret, ServerAddress: ref}) // only other forms can be wrong
	// fetch bounds what it reads, and a registry answers a push only after it has the blob.
	limits := bounds.Limits{MaxManifestSize: math.MaxInt64 / 2, AnswerTimeout: math.MaxInt64}
	return registry.New(ctx, registry.Options{HostsDir: r.HostsDir, Credentials: creds, PlainHTTP: r.PlainHTTP, Limits: limits, Progress: &registry.Progress{}})
}

// named parses a name with a registry; the tag is optional.
func named(ref string) (string, error) {
	parsed, err := reference.ParseNamed(ref)
	if err != nil {
		return "", fmt.Errorf("name %.300q: %w; give registry, repository and tag: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	return reference.TagNameOnly(parsed).String(), nil
}

type blob struct {
	imagespec.Descriptor

	// Name is shown in progress and errors.
	Name string
	Open func() (io.ReadCloser, error)
}

func document(name string, d imagespec.Descriptor, text []byte) blob {
	return blob{d, name, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }}
}

// Push sends the checkpoint in dir to a registry, under ref. It returns the artifact's digest.
func Push(ctx context.Context, dir, ref string, to Registry) (digest.Digest, error) {
	release, err := directory.Use(dir)
	if err != nil {
		return "", err
	}
	defer release()
	m, err := manifest.Read(dir)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(dir, manifest.Name)) // only root can change the file: Read has checked it
	if err != nil {
		return "", err
	}
	described := describe(m, text)
	var blobs []blob
	for i, l := range described.Layers {
		name := m.Files[i].Name
		blobs = append(blobs, blob{l, name, func() (io.ReadCloser, error) { return beneath.Read(dir, filepath.Join(manifest.ImagesDir, name)) }})
	}
	whole, err := json.Marshal(described)
	if err != nil {
		return "", err
	}
	top := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromBytes(whole), Size: int64(len(whole))}
	blobs = append(blobs, document(manifest.Name, described.Config, text), document("manifest", top, whole))
	return top.Digest, to.send(ctx, ref, blobs)
}

// send sends blobs in order. ref then refers to the last one.
func (r Registry) send(ctx context.Context, ref string, blobs []blob) error {
	ref, err := named(ref)
	if err != nil {
		return err
	}
	client := r.client(ctx, ref)
	defer client.Close()
	pusher, err := client.Pusher(ctx, ref)
	if err != nil {
		return fmt.Errorf("push to %s: %w", ref, err)
	}
	for _, b := range blobs {
		r.Progress(b.Name, b.Size)
		if err := push(ctx, pusher, b.Descriptor, b.Open); err != nil {
			return fmt.Errorf("push %s to %s: %w", b.Name, ref, err)
		}
	}
	return nil
}

// describe returns the artifact of a checkpoint with manifest m; text is the JSON of m. Pure.
func describe(m *manifest.Manifest, text []byte) *imagespec.Manifest {
	a := &imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest, ArtifactType: artifactType,
		Config:      imagespec.Descriptor{MediaType: configType, Digest: digest.FromBytes(text), Size: int64(len(text))},
		Annotations: map[string]string{imagespec.AnnotationCreated: m.Created.Format(time.RFC3339)},
	}
	for _, f := range m.Files {
		a.Layers = append(a.Layers, imagespec.Descriptor{
			MediaType: fileType, Digest: digest.NewDigestFromEncoded(digest.SHA256, f.SHA256), Size: f.Size,
			Annotations: map[string]string{imagespec.AnnotationTitle: f.Name},
		})
	}
	return a
}

// push sends one blob, unless the registry has it already.
func push(ctx context.Context, to remotes.Pusher, d imagespec.Descriptor, open func() (io.ReadCloser, error)) error {
	w, err := to.Push(ctx, d)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Close()
	from, err := open()
	if err != nil {
		return err
	}
	defer from.Close()
	return content.Copy(ctx, w, from, d.Size, d.Digest)
}

// Pull downloads a checkpoint from a registry to dir, which it creates and, after an error, removes
// again.
func Pull(ctx context.Context, ref, dir string, from Registry) (_ *manifest.Manifest, err error) {
	if ref, err = named(ref); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("pull %s: %w", ref, err)
		}
	}()
	client := from.client(ctx, ref)
	defer client.Close()
	top, err := client.Resolve(ctx, ref)
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("not found in the registry: %w", errdefs.ErrNotFound) // the resolver's error only repeats the name
	}
	if err != nil {
		return nil, err
	}
	fetcher, err := client.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	described, err := read(ctx, fetcher, top)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	release, err := directory.Use(dir)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := fill(ctx, fetcher, described, dir, from); err != nil {
		return nil, err
	}
	m, err := manifest.Read(dir)
	if err != nil {
		return nil, err
	}
	err = m.Verify(ctx, dir, manifest.Quickly)
	return m, err
}

func read(ctx context.Context, from remotes.Fetcher, top imagespec.Descriptor) (*imagespec.Manifest, error) {
	if top.MediaType != imagespec.MediaTypeImageManifest || top.Size > maxManifest {
		return nil, fmt.Errorf("it is a %s of %d bytes, and not the checkpoint of a pod: %w", top.MediaType, top.Size, errdefs.ErrInvalidArgument)
	}
	text := &bytes.Buffer{}
	if err := fetch(ctx, from, top, text); err != nil {
		return nil, err
	}
	m := &imagespec.Manifest{}
	if err := json.Unmarshal(text.Bytes(), m); err != nil {
		return nil, fmt.Errorf("decode its manifest: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return m, check(m)
}

// check validates an untrusted artifact. Pure.
func check(m *imagespec.Manifest) error {
	if m.ArtifactType != artifactType || m.Config.MediaType != configType {
		return fmt.Errorf("its type is %.100q instead of %q: it is not the checkpoint of a pod: %w", m.ArtifactType, artifactType, errdefs.ErrInvalidArgument)
	}
	if m.Config.Size < 0 || m.Config.Size > maxConfig {
		return fmt.Errorf("its configuration has %d bytes; the limit is %d: %w", m.Config.Size, maxConfig, errdefs.ErrInvalidArgument)
	}
	for _, l := range m.Layers {
		file := l.Annotations[imagespec.AnnotationTitle]
		if !manifest.ValidName(file) || l.Size < 0 {
			return fmt.Errorf("it has a file %.100q of %d bytes: %w", file, l.Size, errdefs.ErrInvalidArgument)
		}
	}
	for _, d := range append([]imagespec.Descriptor{m.Config}, m.Layers...) {
		if err := d.Digest.Validate(); err != nil {
			return fmt.Errorf("digest %.100q: %w: %w", d.Digest, err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// fill creates a checkpoint from an artifact. It writes the manifest last: without it the directory
// is not a checkpoint.
func fill(ctx context.Context, from remotes.Fetcher, m *imagespec.Manifest, dir string, r Registry) error {
	images := filepath.Join(dir, manifest.ImagesDir)
	if err := os.Mkdir(images, 0o700); err != nil {
		return err
	}
	for _, l := range m.Layers {
		r.Progress(l.Annotations[imagespec.AnnotationTitle], l.Size)
		file := filepath.Join(images, l.Annotations[imagespec.AnnotationTitle])
		if err := fetchFile(ctx, from, l, file); err != nil {
			return err
		}
	}
	text := &bytes.Buffer{}
	if err := fetch(ctx, from, m.Config, text); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(images); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, manifest.Name), text.Bytes(), 0o600, atomicfile.Durable)
}

func fetchFile(ctx context.Context, from remotes.Fetcher, d imagespec.Descriptor, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fetch(ctx, from, d, f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// fetch reads one blob. It fails if the content does not match the descriptor.
func fetch(ctx context.Context, from remotes.Fetcher, d imagespec.Descriptor, to io.Writer) error {
	in, err := from.Fetch(ctx, d)
	if err != nil {
		return err
	}
	defer in.Close()
	verifier := d.Digest.Verifier()
	n, err := io.Copy(io.MultiWriter(to, verifier), io.LimitReader(in, d.Size+1))
	if err == nil && (n != d.Size || !verifier.Verified()) {
		err = fmt.Errorf("the registry sent other content than blob %s of %d bytes: %w", d.Digest, d.Size, errdefs.ErrInvalidArgument)
	}
	return err
}
