package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
	"github.com/berth-cri/berth/contrib/verifier/internal/registry"
	"github.com/berth-cri/berth/contrib/verifier/internal/signatures"
)

const (
	descriptorType = "application/vnd.oci.descriptor.v1+json"
	maxDescriptor  = 1 << 20
	// maxReasons is the maximum number of rejected signatures in an error.
	maxReasons = 3
)

// question asks whether a digest may be pulled under a name.
type question struct{ name, digest string }

// checkDescriptor compares stdin with the command line.
func (q question) checkDescriptor(stdin io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(stdin, maxDescriptor+1))
	if err != nil {
		return fmt.Errorf("read the descriptor on stdin: %w", err)
	}
	if len(text) > maxDescriptor {
		return fmt.Errorf("the descriptor on stdin has more than %d bytes", maxDescriptor)
	}
	var d struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("read the descriptor on stdin: %w", err)
	}
	if d.Digest != q.digest {
		return fmt.Errorf("the descriptor on stdin has the digest %q, but -digest is %q", d.Digest, q.digest)
	}
	return nil
}

// decide returns the reason to accept the image, or an error with the reason to refuse it.
func decide(ctx context.Context, policyPath string, q question) (string, error) {
	text, err := readFile(policyPath, policy.MaxSize)
	if err != nil {
		return "", fmt.Errorf("read policy: %w; write one, or name it in %s", err, policyEnv)
	}
	p, err := policy.Parse(text)
	if err != nil {
		return "", fmt.Errorf("read policy: correct %s: %w", policyPath, err)
	}
	image, err := policy.ParseImage(q.name)
	if err != nil {
		return "", err
	}
	digest, err := v1.NewHash(q.digest)
	if err != nil || digest.Algorithm != "sha256" {
		return "", fmt.Errorf("digest %q is not a sha256 digest, by which signatures are found", q.digest)
	}
	if image.Digest != "" && image.Digest != q.digest {
		return "", fmt.Errorf("the name %q has a digest other than %s", q.name, q.digest)
	}
	rule := p.For(image)
	source := fmt.Sprintf("rule %q of %s", rule.Prefix, policyPath)
	if rule.Prefix == "" {
		source = "the default of " + policyPath
	}
	switch rule.Action {
	case policy.Accept:
		return source + " accepts it", nil
	case policy.Signed:
		if err := signed(ctx, p, &rule, signatures.Image{Image: image, Digest: q.digest, MatchReference: rule.MatchReference}, digest); err != nil {
			return "", fmt.Errorf("%s requires a signature: %w", source, err)
		}
		return "it is signed as " + source + " requires", nil
	default:
		return "", fmt.Errorf("%s refuses it; change the policy to accept it", source)
	}
}

// signed returns nil if the image has a valid signature.
func signed(ctx context.Context, p *policy.Policy, rule *policy.Rule, image signatures.Image, digest v1.Hash) error {
	verifier, err := verifierOf(rule)
	if err != nil {
		return err
	}
	config := []byte(nil)
	if p.DockerConfig != "" {
		if config, err = readFile(p.DockerConfig, policy.MaxSize); err != nil {
			return fmt.Errorf("read docker_config: %w", err)
		}
	}
	client, err := registry.New(image.Image, config, p.PlainHTTP)
	if err != nil {
		return err
	}
	s := search{}
	// A failed source does not block the other: only a valid signature accepts the image.
	if verifier.BySimple() {
		s.note(client.Simple(ctx, digest, func(found registry.Simple) bool {
			return s.more(verifier.Simple(found.Payload, found.Signature, image))
		}))
	}
	if !s.counts && verifier.ByBundle(image) {
		s.note(client.Bundles(ctx, digest, func(found []byte) bool {
			return s.more(verifier.Bundle(found, image))
		}))
	}
	return s.result(image)
}

func verifierOf(rule *policy.Rule) (*signatures.Verifier, error) {
	if len(rule.Identities) > 0 {
		text, err := readFile(rule.TrustedRoot, policy.MaxSize)
		if err != nil {
			return nil, fmt.Errorf("read trusted_root: %w", err)
		}
		return signatures.WithIdentities(text, rule.Identities)
	}
	var pems [][]byte
	for _, path := range rule.Keys {
		pem, err := readFile(path, maxKey)
		if err != nil {
			return nil, fmt.Errorf("read key: %w", err)
		}
		pems = append(pems, pem)
	}
	return signatures.WithKeys(pems)
}

// search is the state of the search for a valid signature.
type search struct {
	counts bool
	found  int
	// reasons are the errors of the first invalid signatures.
	reasons []string
	failed  error
}

// more records the verdict on one signature, and reports whether to continue.
func (s *search) more(verdict error) bool {
	s.found++
	if verdict == nil {
		s.counts = true
		return false
	}
	if len(s.reasons) < maxReasons {
		s.reasons = append(s.reasons, verdict.Error())
	}
	return true
}

func (s *search) note(err error) { s.failed = errors.Join(s.failed, err) }

func (s *search) result(image signatures.Image) error {
	switch {
	case s.counts:
		return nil
	case s.failed != nil:
		return fmt.Errorf("read signatures from %s: %w; check the registry, docker_config and plain_http", image.Registry, s.failed)
	case s.found == 0:
		return fmt.Errorf("%s@%s has no signature at %s; sign it with cosign", image.Repository(), image.Digest, image.Registry)
	}
	return fmt.Errorf("no signature of %s@%s is valid (%d found): %s; sign the image as the rule requires, or correct the rule",
		image.Repository(), image.Digest, s.found, strings.Join(s.reasons, "; "))
}
