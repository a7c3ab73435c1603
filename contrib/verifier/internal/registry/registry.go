// Package registry reads the signatures of an image from its registry, in bounds:
//
//	c, err := registry.New(dockerConfig, plainHTTP)
//	err = c.Simple(ctx, image, digest, func(s registry.Simple) bool { … })
//	err = c.Bundles(ctx, image, digest, func(bundle []byte) bool { … })
//
// What it returns was written by whoever may push, and proves nothing by itself.
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
	// MaxDocument is how many bytes an answer may have.
	MaxDocument = 1 << 20
	// MaxSignatures is how many signatures of an image are read.
	MaxSignatures = 64

	signatureAnnotation = "dev.cosignproject.cosign/signature"
	payloadType         = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType          = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// ErrTooMany is an image with more signatures than are read.
var ErrTooMany = fmt.Errorf("the image has more than %d signatures; remove those that are not needed from the registry", MaxSignatures)

// Simple is a signature of cosign's tag scheme.
type Simple struct {
	Payload []byte
	// Signature is base64.
	Signature string
}

// Client reads from one registry after the other. Not for use by several goroutines.
type Client struct {
	auths     auths
	plainHTTP map[string]bool
	transport http.RoundTripper
	left      int
}

// New takes a docker configuration, which may be empty, and the registries that need
// no TLS.
func New(dockerConfig []byte, plainHTTP []string) (*Client, error) {
	c := &Client{plainHTTP: map[string]bool{}, left: MaxSignatures}
	for _, host := range plainHTTP {
		c.plainHTTP[policy.Canonical(host)] = true
	}
	var err error
	if c.auths, err = readAuths(dockerConfig); err != nil {
		return nil, fmt.Errorf("read docker_config: %w", err)
	}
	standard, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the standard HTTP transport was replaced")
	}
	inner := standard.Clone()
	inner.MaxResponseHeaderBytes = 256 << 10
	c.transport = &bounded{inner: inner, plainHTTP: c.plainHTTP}
	return c, nil
}

// session is what one image's registry is asked by.
type session struct {
	repository name.Repository
	puller     *remote.Puller
	options    []remote.Option
}

func (c *Client) session(ctx context.Context, image policy.Image) (*session, error) {
	options := []name.Option{name.StrictValidation}
	if c.plainHTTP[image.Registry] {
		options = append(options, name.Insecure)
	}
	repository, err := name.NewRepository(image.Repository(), options...)
	if err != nil {
		return nil, err
	}
	if policy.Canonical(repository.RegistryStr()) != image.Registry || repository.RepositoryStr() != image.Path {
		return nil, fmt.Errorf("%s would be read from %s", image.Repository(), repository.Name())
	}
	auth, err := c.auths.of(image.Registry)
	if err != nil {
		return nil, err
	}
	s := &session{repository: repository, options: []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(c.transport), remote.WithAuth(auth), remote.WithJobs(1), remote.WithUserAgent("berth-verify-sigstore"),
	}}
	if s.puller, err = remote.NewPuller(s.options...); err != nil {
		return nil, err
	}
	s.options = append(s.options, remote.Reuse(s.puller))
	return s, nil
}

func (s *session) manifest(ctx context.Context, of name.Reference) (*v1.Manifest, error) {
	found, err := s.puller.Get(ctx, of)
	if err != nil {
		return nil, err
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(found.Manifest))
	if err != nil {
		return nil, fmt.Errorf("read the manifest %s: %w", of, err)
	}
	return manifest, nil
}

// Simple hands out the signatures of cosign's tag scheme until yield wants no more.
func (c *Client) Simple(ctx context.Context, image policy.Image, digest v1.Hash, yield func(Simple) bool) error {
	s, err := c.session(ctx, image)
	if err != nil {
		return err
	}
	manifest, err := s.manifest(ctx, s.repository.Tag(digest.Algorithm+"-"+digest.Hex+".sig"))
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
		payload, err := blob(ctx, s, layer)
		if err != nil {
			return err
		}
		if !yield(Simple{Payload: payload, Signature: sig}) {
			return nil
		}
	}
	return nil
}

// Bundles hands out the sigstore bundles that refer to the image.
func (c *Client) Bundles(ctx context.Context, image policy.Image, digest v1.Hash, yield func([]byte) bool) error {
	s, err := c.session(ctx, image)
	if err != nil {
		return err
	}
	index, err := remote.Referrers(s.repository.Digest(digest.String()), s.options...)
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
		bundle, err := c.bundle(ctx, s, list.Manifests[i].Digest)
		if err != nil {
			return err
		}
		if bundle != nil && !yield(bundle) {
			return nil
		}
	}
	return nil
}

// bundle is nil if the manifest has none.
func (c *Client) bundle(ctx context.Context, s *session, digest v1.Hash) ([]byte, error) {
	if err := c.take(); err != nil {
		return nil, err
	}
	manifest, err := s.manifest(ctx, s.repository.Digest(digest.String()))
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != bundleType {
		return nil, nil
	}
	return blob(ctx, s, &manifest.Layers[0])
}

// take counts a signature.
func (c *Client) take() error {
	if c.left <= 0 {
		return ErrTooMany
	}
	c.left--
	return nil
}

// blob is what a descriptor stands for. Its digest is verified as it is read.
func blob(ctx context.Context, s *session, of *v1.Descriptor) ([]byte, error) {
	if of.Size > MaxDocument {
		return nil, fmt.Errorf("signature %s has %d bytes; the most is %d", of.Digest, of.Size, MaxDocument)
	}
	layer, err := s.puller.Layer(ctx, s.repository.Digest(of.Digest.String()))
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

// bounded is a transport that keeps answers small, and everything on TLS but what is
// configured without.
type bounded struct {
	inner     http.RoundTripper
	plainHTTP map[string]bool
}

// RoundTrip refuses plain HTTP, also where a redirect or a token server's address
// leads to it.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !b.plainHTTP[policy.Canonical(r.URL.Host)] {
		return nil, fmt.Errorf("%s is asked without TLS; add it to plain_http if that is wanted", r.URL.Host)
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
