package signatures

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/testing/data"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
	sigdsse "github.com/sigstore/sigstore/pkg/signature/dsse"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

const (
	me     = "me@example.com"
	issuer = "https://issuer.example"
)

func statementOf(predicate, digest string) string {
	return fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"","digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`,
		strings.TrimPrefix(digest, "sha256:"), predicate)
}

// bundleOf returns a bundle in the form that cosign pushes.
func bundleOf(t *testing.T, envelope *dsse.Envelope, certificate *x509.Certificate, entity *ca.TestEntity) []byte {
	t.Helper()
	payload, err := envelope.DecodeB64Payload()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := base64.StdEncoding.DecodeString(envelope.Signatures[0].Sig)
	if err != nil {
		t.Fatal(err)
	}
	b := &protobundle.Bundle{
		MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: payload, PayloadType: envelope.PayloadType, Signatures: []*protodsse.Signature{{Sig: sig}},
		}},
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{Hint: "any"}},
		},
	}
	if certificate != nil {
		b.VerificationMaterial.Content = &protobundle.VerificationMaterial_Certificate{Certificate: &protocommon.X509Certificate{RawBytes: certificate.Raw}}
		entries, err := entity.TlogEntries()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			entry := e.TransparencyLogEntry()
			entry.KindVersion = &protorekor.KindVersion{Kind: "dsse", Version: "0.0.1"}
			b.VerificationMaterial.TlogEntries = append(b.VerificationMaterial.TlogEntries, entry)
		}
		stamps, err := entity.Timestamps()
		if err != nil {
			t.Fatal(err)
		}
		b.VerificationMaterial.TimestampVerificationData = &protobundle.TimestampVerificationData{}
		for _, stamp := range stamps {
			b.VerificationMaterial.TimestampVerificationData.Rfc3161Timestamps = append(b.VerificationMaterial.TimestampVerificationData.Rfc3161Timestamps,
				&protocommon.RFC3161SignedTimestamp{SignedTimestamp: stamp})
		}
	}
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func signedStatement(t *testing.T, key crypto.PrivateKey, statement string) []byte {
	t.Helper()
	signer, err := signature.LoadDefaultSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	enveloper, err := dsse.NewEnvelopeSigner(&sigdsse.SignerAdapter{SignatureSigner: signer})
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := enveloper.SignPayload(context.Background(), "application/vnd.in-toto+json", []byte(statement))
	if err != nil {
		t.Fatal(err)
	}
	return bundleOf(t, envelope, nil, nil)
}

func TestBundleByKeys(t *testing.T) {
	image := imageOf(t, "docker.io/library/busybox:1", false)
	for _, kind := range []string{"p256", "p384", "rsa", "ed25519"} {
		key := keyOf(t, kind)
		v, err := WithKeys([][]byte{publicPEM(t, keyOf(t, "p256")), publicPEM(t, key)})
		if err != nil {
			t.Fatal(err)
		}
		good := signedStatement(t, key, statementOf(signPredicate, digest))
		if err := v.Bundle(good, image); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		matching := image
		matching.MatchReference = true
		hexed := strings.TrimPrefix(digest, "sha256:")
		payload := base64.StdEncoding.EncodeToString([]byte(statementOf(signPredicate, other)))
		for name, c := range map[string]struct {
			bundle []byte
			image  Image
		}{
			"untrusted key":     {signedStatement(t, keyOf(t, kind), statementOf(signPredicate, digest)), image},
			"of another image":  {signedStatement(t, key, statementOf(signPredicate, other)), image},
			"other predicate":   {signedStatement(t, key, statementOf("https://slsa.dev/provenance/v1", digest)), image},
			"no subject":        {signedStatement(t, key, strings.Replace(statementOf(signPredicate, digest), `"sha256":"`+hexed+`"`, "", 1)), image},
			"other algorithm":   {signedStatement(t, key, strings.Replace(statementOf(signPredicate, digest), "sha256", "sha512", 1)), image},
			"match_reference":   {good, matching},
			"altered statement": {[]byte(replacePayload(t, good, payload)), Image{Image: image.Image, Digest: other}},
			"empty":             {nil, image},
			"not JSON":          {[]byte("x"), image},
			"not a bundle":      {[]byte("{}"), image},
			"truncated":         {good[:len(good)/2], image},
		} {
			if v.Bundle(c.bundle, c.image) == nil {
				t.Errorf("a bundle by key %s is accepted: %s", kind, name)
			}
		}
	}
}

func replacePayload(t *testing.T, bundle []byte, payload string) string {
	t.Helper()
	var b map[string]any
	if err := json.Unmarshal(bundle, &b); err != nil {
		t.Fatal(err)
	}
	envelope, ok := b["dsseEnvelope"].(map[string]any)
	if !ok {
		t.Fatal("no envelope")
	}
	envelope["payload"] = payload
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// authority creates a sigstore for a test, and returns it and its trusted_root.json.
func authority(t *testing.T) (*ca.VirtualSigstore, []byte) {
	t.Helper()
	s, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	logs := s.RekorLogs()
	for id, log := range logs {
		if log.ID, err = hex.DecodeString(id); err != nil {
			t.Fatal(err)
		}
	}
	material, err := root.NewTrustedRoot(root.TrustedRootMediaType01, s.FulcioCertificateAuthorities(), s.CTLogs(), s.TimestampingAuthorities(), logs)
	if err != nil {
		t.Fatal(err)
	}
	text, err := material.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return s, text
}

func attested(t *testing.T, s *ca.VirtualSigstore, who, by, statement string) []byte {
	t.Helper()
	entity, err := s.AttestAtTime(who, by, []byte(statement), time.Now().Add(5*time.Minute), true)
	if err != nil {
		t.Fatal(err)
	}
	content, err := entity.SignatureContent()
	if err != nil {
		t.Fatal(err)
	}
	material, err := entity.VerificationContent()
	if err != nil {
		t.Fatal(err)
	}
	return bundleOf(t, content.EnvelopeContent().RawEnvelope(), material.Certificate(), entity)
}

func TestBundleByIdentities(t *testing.T) {
	image := imageOf(t, "docker.io/library/busybox:1", false)
	s, trusted := authority(t)
	stranger, _ := authority(t)
	ids := []policy.Identity{{Issuer: "https://other.example", Subject: "x"}, {Issuer: issuer, Subject: me}}
	// The test's authority has no certificate transparency log; that of TestPublicGood has one.
	v, err := withIdentities(trusted, ids, verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1))
	if err != nil {
		t.Fatal(err)
	}
	good := attested(t, s, me, issuer, statementOf(signPredicate, digest))
	if err := v.Bundle(good, image); err != nil {
		t.Error(err)
	}
	if v.BySimple() || v.Simple([]byte("{}"), "AAAA", image) == nil {
		t.Error("signatures without a certificate are accepted")
	}
	for name, bundle := range map[string][]byte{
		"other subject":    attested(t, s, "me@example.com.evil.example", issuer, statementOf(signPredicate, digest)),
		"other issuer":     attested(t, s, me, issuer+".evil.example", statementOf(signPredicate, digest)),
		"mixed":            attested(t, s, "x", issuer, statementOf(signPredicate, digest)),
		"of another image": attested(t, s, me, issuer, statementOf(signPredicate, other)),
		"other predicate":  attested(t, s, me, issuer, statementOf("https://spdx.dev/Document", digest)),
		"other authority":  attested(t, stranger, me, issuer, statementOf(signPredicate, digest)),
		"by a key":         signedStatement(t, keyOf(t, "p256"), statementOf(signPredicate, digest)),
	} {
		if v.Bundle(bundle, image) == nil {
			t.Errorf("a bundle is accepted: %s", name)
		}
	}
	strict, err := WithIdentities(trusted, ids)
	if err != nil {
		t.Fatal(err)
	}
	if strict.Bundle(good, image) == nil {
		t.Error("a certificate that is not in a log is accepted")
	}
	keyed, err := WithKeys([][]byte{publicPEM(t, keyOf(t, "p256"))})
	if err != nil {
		t.Fatal(err)
	}
	if keyed.Bundle(good, image) == nil {
		t.Error("a certificate is accepted where a key is needed")
	}
}

// TestPublicGood verifies a bundle of the public sigstore by all checks that images get. The bundle
// is for an npm package, so its digest is a sha512, and it must not be accepted for an image.
func TestPublicGood(t *testing.T) {
	trusted := data.TrustedRoot(t, "public-good.json")
	text, err := trusted.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	b := data.Bundle(t, "sigstore.js@2.0.0-provenance.sigstore.json")
	raw, err := hex.DecodeString("46d4e2f74c4877316640000a6fdf8a8b59f1e0847667973e9859f774dd31b8f1e0937813b777fb66a2ac67d50540fe34640966eee9fc2ccca387082b4c85cd3c")
	if err != nil {
		t.Fatal(err)
	}
	const subject = "https://github.com/sigstore/sigstore-js/.github/workflows/release.yml@refs/heads/main"
	for id, want := range map[policy.Identity]bool{
		{Issuer: "https://token.actions.githubusercontent.com", Subject: subject}:       true,
		{Issuer: "https://token.actions.githubusercontent.com", Subject: subject + "2"}: false,
		{Issuer: "https://token.actions", Subject: subject}:                             false,
	} {
		v, err := WithIdentities(text, []policy.Identity{id})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.verifyEntity(b, verify.WithArtifactDigest("sha512", raw)); (err == nil) != want {
			t.Errorf("%+v: %v, want accepted: %v", id, err, want)
		}
		bundle, err := b.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if v.Bundle(bundle, imageOf(t, "docker.io/library/busybox:1", false)) == nil {
			t.Errorf("%+v: the bundle of a package is accepted for an image", id)
		}
	}
}

func TestMistakesOfIdentities(t *testing.T) {
	_, trusted := authority(t)
	for name, c := range map[string]struct {
		root []byte
		ids  []policy.Identity
	}{
		"no root":        {nil, []policy.Identity{{Issuer: issuer, Subject: me}}},
		"empty root":     {[]byte("{}"), []policy.Identity{{Issuer: issuer, Subject: me}}},
		"no identity":    {trusted, nil},
		"empty identity": {trusted, []policy.Identity{{}}},
		"no subject":     {trusted, []policy.Identity{{Issuer: issuer}}},
		"no issuer":      {trusted, []policy.Identity{{Subject: me}}},
	} {
		if _, err := WithIdentities(c.root, c.ids); err == nil {
			t.Errorf("accepted: %s", name)
		}
	}
}
