package signatures

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

// signPredicate is the predicate type of a statement that signs an image. Other types are for
// SBOMs, builds and scans: trust in a key for images does not include them.
const signPredicate = "https://sigstore.dev/cosign/sign/v1"

// keyless verifies by certificates of identities.
type keyless struct {
	verifier   *verify.Verifier
	identities []verify.PolicyOption
}

// WithIdentities trusts certificates of these identities that the authorities and logs of a
// trusted_root.json confirm. It uses no network.
func WithIdentities(trustedRoot []byte, identities []policy.Identity) (*Verifier, error) {
	// As in cosign, logs must have recorded the certificate and the signature, and the time must be
	// attested.
	return withIdentities(trustedRoot, identities, verify.WithSignedCertificateTimestamps(1), verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1))
}

func withIdentities(trustedRoot []byte, identities []policy.Identity, wanted ...verify.VerifierOption) (*Verifier, error) {
	material, err := root.NewTrustedRootFromJSON(trustedRoot)
	if err != nil {
		return nil, fmt.Errorf("read trusted root: %w", err)
	}
	k := &keyless{}
	if k.verifier, err = verify.NewVerifier(material, wanted...); err != nil {
		return nil, fmt.Errorf("read trusted root: %w", err)
	}
	for _, i := range identities {
		if i.Issuer == "" || i.Subject == "" { // would match every identity
			return nil, errors.New("an identity needs issuer and subject")
		}
		identity, err := verify.NewShortCertificateIdentity(i.Issuer, "", i.Subject, "")
		if err != nil {
			return nil, fmt.Errorf("read identity: %w", err)
		}
		k.identities = append(k.identities, verify.WithCertificateIdentity(identity))
	}
	if len(k.identities) == 0 {
		return nil, errors.New("no identity is trusted")
	}
	return &Verifier{keyless: k}, nil
}

// ByBundle reports whether bundles can be valid: they do not name the repository, which
// MatchReference requires.
func (v *Verifier) ByBundle(image Image) bool { return !image.MatchReference }

// Bundle verifies a sigstore bundle with a statement that signs the image.
func (v *Verifier) Bundle(text []byte, image Image) error {
	if image.MatchReference {
		return errors.New("a bundle names no repository, which match_reference needs")
	}
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(text); err != nil {
		return fmt.Errorf("it is not a bundle: %w", err)
	}
	hexed, ok := strings.CutPrefix(image.Digest, "sha256:")
	raw, err := hex.DecodeString(hexed)
	if !ok || err != nil {
		return fmt.Errorf("digest %q is not a sha256 digest, by which signatures are found", image.Digest)
	}
	result, err := v.verifyEntity(b, verify.WithArtifactDigest("sha256", raw))
	if err != nil {
		return err
	}
	if result.Statement == nil {
		return errors.New("the bundle has no statement")
	}
	if t := result.Statement.GetPredicateType(); t != signPredicate {
		return fmt.Errorf("the bundle's statement is %q, which does not sign an image", t)
	}
	return nil
}

func (v *Verifier) verifyEntity(b verify.SignedEntity, artifact verify.ArtifactPolicyOption) (*verify.VerificationResult, error) {
	if v.keyless != nil {
		return v.keyless.verifier.Verify(b, verify.NewPolicy(artifact, v.keyless.identities...))
	}
	err := errors.New("no key is trusted")
	for _, key := range v.keys {
		var result *verify.VerificationResult
		if result, err = verifyByKey(b, key, artifact); err == nil {
			return result, nil
		}
	}
	return nil, fmt.Errorf("it is not by a trusted key, or was altered: %w", err)
}

// verifyByKey trusts a key without an expiry, so it requires no log and no time.
func verifyByKey(b verify.SignedEntity, key signature.Verifier, artifact verify.ArtifactPolicyOption) (*verify.VerificationResult, error) {
	material := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(key, time.Time{}, time.Time{}), nil
	})
	verifier, err := verify.NewVerifier(material, verify.WithNoObserverTimestamps())
	if err != nil {
		return nil, err
	}
	return verifier.Verify(b, verify.NewPolicy(artifact, verify.WithKey()))
}
