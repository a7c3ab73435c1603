// Package signatures verifies signatures of images by trusted keys or identities:
//
//	v, err := signatures.WithKeys(pems)
//	err = v.Simple(payload, signature, image) // nil: it is valid
//	err = v.Bundle(text, image)
//
// It is pure: its callers read the input.
package signatures

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

// Image is the image that must be signed.
type Image struct {
	policy.Image
	// Digest is the digest of its manifest or index: "sha256:" and 64 digits.
	Digest string
	// MatchReference requires the signature to name the repository, too.
	MatchReference bool
}

// Verifier verifies by its trusted signers. A signature by one of them suffices.
type Verifier struct {
	keys []signature.Verifier
	// keyless is nil if keys are trusted.
	keyless *keyless
}

// WithKeys trusts public keys in PEM.
func WithKeys(pems [][]byte) (*Verifier, error) {
	v := &Verifier{}
	for _, pem := range pems {
		public, err := cryptoutils.UnmarshalPEMToPublicKey(pem)
		if err != nil {
			return nil, fmt.Errorf("read public key: %w", err)
		}
		if err := checkStrength(public); err != nil {
			return nil, err
		}
		verifiers, err := verifiersOf(public)
		if err != nil {
			return nil, fmt.Errorf("read public key: %w", err)
		}
		v.keys = append(v.keys, verifiers...)
	}
	if len(v.keys) == 0 {
		return nil, errors.New("no key is trusted")
	}
	return v, nil
}

const leastRSA = 2048

func checkStrength(public crypto.PublicKey) error {
	switch key := public.(type) {
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if key.N.BitLen() < leastRSA {
			return fmt.Errorf("an RSA key has %d bits; use one of %d or more", key.N.BitLen(), leastRSA)
		}
		return nil
	case *ecdsa.PublicKey:
		if slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			return nil
		}
	}
	return fmt.Errorf("a public key of the kind %T is not supported; use ECDSA (P-256, P-384, P-521), Ed25519 or RSA", public)
}

// verifiersOf returns two verifiers for larger curves: cosign first hashed with SHA-256 for all
// curves, and later with the curve's own hash.
func verifiersOf(public crypto.PublicKey) ([]signature.Verifier, error) {
	v, err := signature.LoadVerifier(public, crypto.SHA256)
	if err != nil {
		return nil, err
	}
	all := []signature.Verifier{v}
	if key, ok := public.(*ecdsa.PublicKey); ok && key.Curve != elliptic.P256() {
		larger, err := signature.LoadDefaultVerifier(public)
		if err != nil {
			return nil, err
		}
		all = append(all, larger)
	}
	return all, nil
}

// BySimple reports whether signatures of the tag scheme can be valid.
func (v *Verifier) BySimple() bool { return len(v.keys) > 0 }

// Simple verifies cosign's simple signing: a base64 signature over a payload that names the image.
func (v *Verifier) Simple(payload []byte, sig string, image Image) error {
	raw, err := base64.StdEncoding.DecodeString(sig)
	if err != nil || len(raw) == 0 {
		return errors.New("the signature is not base64")
	}
	signed := slices.ContainsFunc(v.keys, func(key signature.Verifier) bool {
		return key.VerifySignature(bytes.NewReader(raw), bytes.NewReader(payload)) == nil
	})
	if !signed {
		return errors.New("it is not by a trusted key, or its payload was altered")
	}
	return checkPayload(payload, image)
}

// simpleType is the type in a payload; later versions use signPredicate.
const simpleType = "cosign container image signature"

// checkPayload returns an error unless a payload names the image.
func checkPayload(payload []byte, image Image) error {
	var p struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Identity struct {
				Reference string `json:"docker-reference"`
			} `json:"identity"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return fmt.Errorf("the payload is not JSON: %w", err)
	}
	// A key may sign other things; a payload of another type has another meaning.
	if t := p.Critical.Type; t != simpleType && t != signPredicate {
		return fmt.Errorf("the payload has the type %q, which is not a signature of an image", t)
	}
	if p.Critical.Image.Digest != image.Digest {
		return fmt.Errorf("it signs another image: %q", p.Critical.Image.Digest)
	}
	if image.MatchReference {
		return checkReference(p.Critical.Identity.Reference, image)
	}
	return nil
}

// checkReference compares the repository, and the tag and digest if the reference has them.
func checkReference(text string, image Image) error {
	named, err := policy.ParseImage(text)
	if err != nil {
		return fmt.Errorf("it names no repository, which match_reference needs: %w", err)
	}
	same := named.Repository() == image.Repository()
	if named.Tag != "" && image.Tag != "" {
		same = same && named.Tag == image.Tag
	}
	if named.Digest != "" {
		same = same && named.Digest == image.Digest
	}
	if !same {
		return fmt.Errorf("it is for %q, not for this name", text)
	}
	return nil
}
