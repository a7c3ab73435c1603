package signatures

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

var (
	digest = "sha256:" + strings.Repeat("ab", 32)
	other  = "sha256:" + strings.Repeat("cd", 32)
)

func imageOf(t *testing.T, name string, match bool) Image {
	t.Helper()
	image, err := policy.ParseImage(name)
	if err != nil {
		t.Fatal(err)
	}
	return Image{Image: image, Digest: digest, MatchReference: match}
}

func payloadOf(kind, reference, digest string) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, reference, digest, kind)
}

func TestPayload(t *testing.T) {
	const here = "docker.io/library/busybox"
	good := payloadOf(simpleType, "index.docker.io/library/busybox", digest)
	for name, c := range map[string]struct {
		payload string
		match   bool
		want    string
	}{
		"good":                {good, false, ""},
		"good, repository":    {good, true, ""},
		"later type":          {payloadOf(signPredicate, here, digest), true, ""},
		"same tag":            {payloadOf(simpleType, here+":1", digest), true, ""},
		"same digest":         {payloadOf(simpleType, here+"@"+digest, digest), true, ""},
		"not asked for":       {payloadOf(simpleType, "quay.io/a/b", digest), false, ""},
		"other digest":        {payloadOf(simpleType, here, other), false, "signs another image"},
		"no digest":           {payloadOf(simpleType, here, ""), false, "signs another image"},
		"digest in capitals":  {payloadOf(simpleType, here, strings.ToUpper(digest)), false, "signs another image"},
		"other type":          {payloadOf("atomic container signature", here, digest), false, "type"},
		"no type":             {payloadOf("", here, digest), false, "type"},
		"other repository":    {payloadOf(simpleType, "docker.io/library/busybox2", digest), true, "not for this name"},
		"below it":            {payloadOf(simpleType, here+"/x", digest), true, "not for this name"},
		"above it":            {payloadOf(simpleType, "docker.io/library", digest), true, "not for this name"},
		"other registry":      {payloadOf(simpleType, "quay.io/library/busybox", digest), true, "not for this name"},
		"other tag":           {payloadOf(simpleType, here+":2", digest), true, "not for this name"},
		"other digest there":  {payloadOf(simpleType, here+"@"+other, digest), true, "not for this name"},
		"no reference":        {payloadOf(simpleType, "", digest), true, "names no repository"},
		"hostile reference":   {payloadOf(simpleType, "../x", digest), true, "names no repository"},
		"empty":               {"", false, "not JSON"},
		"not an object":       {"[]", false, "not JSON"},
		"digest not a string": {`{"critical":{"image":{"docker-manifest-digest":1}}}`, false, "not JSON"},
		"null":                {"null", false, "type"},
		"more than one":       {good + good, false, "not JSON"},
	} {
		err := checkPayload([]byte(c.payload), imageOf(t, here+":1", c.match))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
	}
}

func keyOf(t *testing.T, kind string) crypto.PrivateKey {
	t.Helper()
	var key crypto.PrivateKey
	var err error
	switch kind {
	case "p256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "p384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "rsa":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func publicPEM(t *testing.T, key crypto.PrivateKey) []byte {
	t.Helper()
	signer, ok := key.(crypto.Signer)
	if !ok {
		t.Fatalf("%T does not sign", key)
	}
	pem, err := cryptoutils.MarshalPublicKeyToPEM(signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem
}

func sign(t *testing.T, key crypto.PrivateKey, payload string) string {
	t.Helper()
	signer, err := signature.LoadSigner(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := signer.SignMessage(strings.NewReader(payload))
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func TestSimpleByKeys(t *testing.T) {
	image := imageOf(t, "docker.io/library/busybox:1", false)
	payload := payloadOf(simpleType, "docker.io/library/busybox", digest)
	for _, kind := range []string{"p256", "p384", "rsa", "ed25519"} {
		key, stranger := keyOf(t, kind), keyOf(t, kind)
		v, err := WithKeys([][]byte{publicPEM(t, keyOf(t, "p256")), publicPEM(t, key)})
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		good := sign(t, key, payload)
		if err := v.Simple([]byte(payload), good, image); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		altered := payloadOf(simpleType, "docker.io/library/busybox", other)
		for name, err := range map[string]error{
			"untrusted key":    v.Simple([]byte(payload), sign(t, stranger, payload), image),
			"altered":          v.Simple([]byte(strings.Replace(payload, "null", "true", 1)), good, image),
			"altered digest":   v.Simple([]byte(altered), good, Image{Image: image.Image, Digest: other}),
			"of another image": v.Simple([]byte(altered), sign(t, key, altered), image),
			"no signature":     v.Simple([]byte(payload), "", image),
			"not base64":       v.Simple([]byte(payload), "%", image),
			"truncated":        v.Simple([]byte(payload), good[:len(good)/8*4], image),
			"empty signature":  v.Simple([]byte(payload), "AA==", image),
		} {
			if err == nil {
				t.Errorf("a signature by key %s is accepted: %s", kind, name)
			}
		}
	}
}

func TestKeysThatAreNot(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	private, err := cryptoutils.MarshalPrivateKeyToPEM(keyOf(t, "p256"))
	if err != nil {
		t.Fatal(err)
	}
	for name, pems := range map[string][][]byte{
		"none": nil, "empty": {nil}, "text": {[]byte("x")}, "small": {publicPEM(t, small)}, "private": {private},
		"one of two": {publicPEM(t, keyOf(t, "p256")), []byte("x")},
	} {
		if _, err := WithKeys(pems); err == nil {
			t.Errorf("%s: accepted as keys", name)
		}
	}
}

func FuzzSimple(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	pem, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	if err != nil {
		f.Fatal(err)
	}
	v, err := WithKeys([][]byte{pem})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(payloadOf(simpleType, "a.example/b", digest)), "AAAA")
	f.Fuzz(func(t *testing.T, payload []byte, sig string) {
		if v.Simple(payload, sig, Image{Digest: digest}) == nil {
			t.Error("a random signature is accepted")
		}
		_ = checkPayload(bytes.TrimSpace(payload), Image{Digest: digest, MatchReference: true})
	})
}
