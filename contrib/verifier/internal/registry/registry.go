// Package registry reads the signatures of an image from its registry, within limits:
//
//	c, err := registry.New(image, dockerConfig, plainHTTP)
//	err = c.Simple(ctx, digest, func(s registry.Simple) bool { … })
//	err = c.Bundles(ctx, digest, func(bundle []byte) bool { … })
//
// Its results are unverified: anyone with the right to push can write them.
package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

const (
	// MaxDocument is the size limit of an answer, in bytes.
	MaxDocument = 1 << 20
	// MaxSignatures is the maximum number of signatures that are read for an image.
	MaxSignatures = 64

	signatureAnnotation = "dev.cosignproject.cosign/signature"
	payloadType         = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType          = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// ErrTooMany means that an image has more than MaxSignatures.
var ErrTooMany = fmt.Errorf("the image has more than %d signatures; remove those that are not needed from the registry", MaxSignatures)

// Simple is a signature of cosign's tag scheme.
type Simple struct {
	Payload []byte
	// Signature is base64.
	Signature string
}

// Client reads from the registry of one image. It is not safe for concurrent use.
type Client struct {
	repository name.Repository
	puller     *remote.Puller
	options    []remote.Option
	transport  *bounded
	left       int
}

// New returns a Client. dockerConfig may be empty; plainHTTP lists registries without TLS.
func New(image policy.Image, dockerConfig []byte, plainHTTP []string) (*Client, error) {
	auth, err := credentials(dockerConfig, image.Registry)
	if err != nil {
		return nil, err
	}
	plain := map[string]bool{}
	for _, host := range plainHTTP {
		plain[policy.Canonical(host)] = true
	}
	standard, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the standard HTTP transport was replaced")
	}
	inner := standard.Clone()
	inner.MaxResponseHeaderBytes = 256 << 10
	c := &Client{transport: &bounded{inner: inner, plainHTTP: plain}, left: MaxSignatures}
	options := []name.Option{name.StrictValidation}
	if plain[image.Registry] {
		options = append(options, name.Insecure)
	}
	if c.repository, err = name.NewRepository(image.Repository(), options...); err != nil {
		return nil, err
	}
	if policy.Canonical(c.repository.RegistryStr()) != image.Registry || c.repository.RepositoryStr() != image.Path {
		return nil, fmt.Errorf("the repository %s would be read from %s", image.Repository(), c.repository.Name())
	}
	c.options = []remote.Option{remote.WithTransport(c.transport), remote.WithAuth(auth), remote.WithJobs(1), remote.WithUserAgent("berth-verify-sigstore")}
	if c.puller, err = remote.NewPuller(c.options...); err != nil {
		return nil, err
	}
	c.options = append(c.options, remote.Reuse(c.puller))
	return c, nil
}

func (c *Client) manifest(ctx context.Context, of name.Reference) (*v1.Manifest, error) {
	found, err := c.puller.Get(ctx, of)
	if err != nil {
		return nil, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(found.Manifest))
	if err != nil {
		return nil, fmt.Errorf("read the manifest %s: %w", of, err)
	}
	return manifest, nil
}

// Simple yields the signatures of cosign's tag scheme until yield returns false.
func (c *Client) Simple(ctx context.Context, digest v1.Hash, yield func(Simple) bool) error {
	manifest, err := c.manifest(ctx, c.repository.Tag(digest.Algorithm+"-"+digest.Hex+".sig"))
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range manifest.Layers {
		layer := &manifest.Layers[i]
		sig := layer.Annotations[signatureAnnotation]
		if layer.MediaType != payloadType || sig == "" {
			continue
		}
		if err := c.take(); err != nil {
			return err
		}
		payload, err := c.blob(ctx, layer)
		if err != nil {
			return err
		}
		if !yield(Simple{Payload: payload, Signature: sig}) {
			return nil
		}
	}
	return nil
}

// Bundles yields the sigstore bundles that refer to the image until yield returns false.
func (c *Client) Bundles(ctx context.Context, digest v1.Hash, yield func([]byte) bool) error {
	index, err := remote.Referrers(c.repository.Digest(digest.String()), append(c.options, remote.WithContext(ctx))...)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("read the list of referrers: %w", err)
	}
	for i := range list.Manifests {
		if list.Manifests[i].ArtifactType != bundleType {
			continue
		}
		bundle, err := c.bundle(ctx, list.Manifests[i].Digest)
		if err != nil {
			return err
		}
		if bundle != nil && !yield(bundle) {
			return nil
		}
	}
	return nil
}

// bundle reads a bundle. It returns nil if the manifest has none.
func (c *Client) bundle(ctx context.Context, digest v1.Hash) ([]byte, error) {
	if err := c.take(); err != nil {
		return nil, err
	}
	manifest, err := c.manifest(ctx, c.repository.Digest(digest.String()))
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != bundleType {
		return nil, nil
	}
	return c.blob(ctx, &manifest.Layers[0])
}

func (c *Client) take() error {
	if c.left <= 0 {
		return ErrTooMany
	}
	c.left--
	return nil
}

// blob reads the content of a descriptor and verifies its digest.
func (c *Client) blob(ctx context.Context, of *v1.Descriptor) ([]byte, error) {
	if of.Size > MaxDocument {
		return nil, fmt.Errorf("signature %s has %d bytes; the most is %d", of.Digest, of.Size, MaxDocument)
	}
	layer, err := c.puller.Layer(ctx, c.repository.Digest(of.Digest.String()))
	if err != nil {
		return nil, err
	}
	r, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r) // the transport bounds it
}

func missing(err error) bool {
	answer, ok := errors.AsType[*transport.Error](err)
	return ok && answer.StatusCode == http.StatusNotFound
}

// bounded is a transport that limits the size of answers and requires TLS, except for the
// configured registries.
type bounded struct {
	inner     http.RoundTripper
	plainHTTP map[string]bool
}

// RoundTrip rejects plain HTTP, even if a redirect or a token server's address leads to it.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !b.plainHTTP[policy.Canonical(r.URL.Host)] {
		return nil, fmt.Errorf("%s would be read without TLS; add it to plain_http to allow that", r.URL.Host)
	}
	answer, err := b.inner.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer.Body = &boundedBody{ReadCloser: answer.Body, left: MaxDocument, of: r.URL.Host}
	return answer, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
	of   string
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("%s answers with more than %d bytes", b.of, MaxDocument)
	}
	return n, err
}
