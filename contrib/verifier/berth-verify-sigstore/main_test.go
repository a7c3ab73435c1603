package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	sigdsse "github.com/sigstore/sigstore/pkg/signature/dsse"
)

const (
	signatureType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	bundleType     = "application/vnd.dev.sigstore.bundle.v0.3+json"
	annotation     = "dev.cosignproject.cosign/signature"
	simpleType     = "cosign container image signature"
	signStatement  = "https://sigstore.dev/cosign/sign/v1"
	vulnerability  = "https://cosign.sigstore.dev/attestation/vuln/v1"
	envelopeInToto = "application/vnd.in-toto+json"
)

// bed is a registry, and a directory with policies and keys.
type bed struct {
	*testing.T
	host, dir string
	key       *ecdsa.PrivateKey
	requests  atomic.Int32
}

func newBed(t *testing.T) *bed {
	b := &bed{T: t, dir: t.TempDir()}
	in := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		if strings.Contains(r.URL.Path, "/private/") {
			if user, password, _ := r.BasicAuth(); user != "me" || password != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
		}
		if strings.Contains(r.URL.Path, "/broken/") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if strings.Contains(r.URL.Path, "/large/") && strings.Contains(r.URL.Path, "/manifests/") {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 4<<20))
			return
		}
		in.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.host = strings.TrimPrefix(server.URL, "http://")
	b.key = b.newKey("a.pub")
	return b
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func (b *bed) newKey(file string) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	b.must(err)
	pem, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	b.must(err)
	b.write(file, string(pem))
	return key
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) write(file, text string) string {
	path := filepath.Join(b.dir, file)
	b.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (b *bed) repository(repo string) name.Repository {
	r, err := name.NewRepository(b.host+"/"+repo, name.Insecure)
	b.must(err)
	return r
}

// push pushes an image and returns its digest.
func (b *bed) push(repo string) v1.Hash {
	image, err := random.Image(64, 1)
	b.must(err)
	b.must(remote.Write(b.repository(repo).Tag("1"), image))
	digest, err := image.Digest()
	b.must(err)
	return digest
}

func payloadOf(reference string, digest v1.Hash) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, reference, digest, simpleType)
}

func (b *bed) signatureOf(key crypto.PrivateKey, payload string) string {
	signer, err := signature.LoadSigner(key, crypto.SHA256)
	b.must(err)
	raw, err := signer.SignMessage(strings.NewReader(payload))
	b.must(err)
	return base64.StdEncoding.EncodeToString(raw)
}

type layer struct{ payload, signature string }

// attach pushes signatures under the tag that cosign derives from the digest.
func (b *bed) attach(repo string, digest v1.Hash, layers ...layer) {
	image := empty.Image
	for _, l := range layers {
		var err error
		image, err = mutate.Append(image, mutate.Addendum{
			Layer: static.NewLayer([]byte(l.payload), signatureType), MediaType: signatureType, Annotations: map[string]string{annotation: l.signature},
		})
		b.must(err)
	}
	b.must(remote.Write(b.repository(repo).Tag("sha256-"+digest.Hex+".sig"), image))
}

func (b *bed) sign(repo string, digest v1.Hash, key crypto.PrivateKey) {
	payload := payloadOf(b.host+"/"+repo, digest)
	b.attach(repo, digest, layer{payload, b.signatureOf(key, payload)})
}

// attachBundle pushes a bundle. to is the image that it refers to, signed the one in its statement.
func (b *bed) attachBundle(repo string, to, signed v1.Hash, key crypto.PrivateKey, predicate string) {
	signer, err := signature.LoadSigner(key, crypto.SHA256)
	b.must(err)
	enveloper, err := dsse.NewEnvelopeSigner(&sigdsse.SignerAdapter{SignatureSigner: signer})
	b.must(err)
	statement := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, signed.Hex, predicate)
	envelope, err := enveloper.SignPayload(b.Context(), envelopeInToto, []byte(statement))
	b.must(err)
	bundle, err := json.Marshal(map[string]any{
		"mediaType":            bundleType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": map[string]any{
			"payload": envelope.Payload, "payloadType": envelope.PayloadType, "signatures": []any{map[string]any{"sig": envelope.Signatures[0].Sig}},
		},
	})
	b.must(err)
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{Layer: static.NewLayer(bundle, bundleType), MediaType: bundleType})
	b.must(err)
	image = mutate.ConfigMediaType(image, bundleType)
	subject, err := remote.Head(b.repository(repo).Digest(to.String()))
	b.must(err)
	referring, ok := mutate.Subject(image, *subject).(v1.Image)
	if !ok {
		b.Fatal("not an image")
	}
	digest, err := referring.Digest()
	b.must(err)
	b.must(remote.Write(b.repository(repo).Digest(digest.String()), referring))
}

// ask runs the verifier as the daemon does.
func (b *bed) ask(policy, image string, digest v1.Hash) (accepted bool, reason string) {
	b.Helper()
	return b.askWith(b.write("verify.toml", policy), "-name", image, "-digest", digest.String(), "-stdin-media-type", descriptorType)
}

func (b *bed) askWith(path string, args ...string) (accepted bool, reason string) {
	b.Helper()
	digest := ""
	if len(args) > 3 {
		digest = args[3]
	}
	var stdout bytes.Buffer
	status := run(args, path, strings.NewReader(fmt.Sprintf(`{"mediaType":"x","digest":%q,"size":1}`, digest)), &stdout)
	if strings.Count(stdout.String(), "\n") != 1 {
		b.Errorf("stdout is not one line: %q", stdout.String())
	}
	return status == 0, stdout.String()
}

func (b *bed) policy(rules string) string {
	return strings.NewReplacer("HOST", b.host, "DIR", b.dir).Replace("default = \"refuse\"\nplain_http = [\"HOST\"]\n" + rules)
}

const signedRule = "[[rules]]\nprefix = \"HOST/team\"\naction = \"signed\"\nkeys = [\"DIR/b.pub\", \"DIR/a.pub\"]\n"

func (b *bed) expect(what, policy, image string, digest v1.Hash, want string) {
	b.Helper()
	accepted, reason := b.ask(b.policy(policy), b.host+"/"+image, digest)
	if accepted != strings.HasPrefix(want, "accepted") || !strings.Contains(reason, want) {
		b.Errorf("%s: accepted: %v, %s; want %q", what, accepted, reason, want)
	}
}

func TestSignaturesAtTheRegistry(t *testing.T) {
	b := newBed(t)
	b.newKey("b.pub")
	stranger := b.newKey("stranger.pub")
	image := b.push("team/signed")
	b.sign("team/signed", image, b.key)
	b.expect("signed", signedRule, "team/signed:1", image, "accepted")
	b.expect("signed, by digest", signedRule, "team/signed@"+image.String(), image, "accepted")
	b.expect("signed, with match_reference", signedRule+"match_reference = true", "team/signed:1", image, "accepted")

	plain := b.push("team/plain")
	b.expect("unsigned", signedRule, "team/plain:1", plain, "has no signature at")

	b.sign("team/plain", plain, stranger)
	b.expect("wrong key", signedRule, "team/plain:1", plain, "not by a trusted key")

	copied := b.push("team/copied")
	payload := payloadOf(b.host+"/team/signed", image)
	b.attach("team/copied", copied, layer{payload, b.signatureOf(b.key, payload)})
	b.expect("copied from another image", signedRule, "team/copied:1", copied, "signs another image")

	altered := payloadOf(b.host+"/team/copied", copied)
	b.attach("team/copied", copied, layer{altered, b.signatureOf(b.key, payload)})
	b.expect("altered payload", signedRule, "team/copied:1", copied, "payload was altered")

	b.attach("team/copied", copied, layer{altered, ""}, layer{altered, "%%%"}, layer{"x", b.signatureOf(b.key, "x")}, layer{altered, b.signatureOf(b.key, altered)})
	b.expect("one of several", signedRule, "team/copied:1", copied, "accepted")

	moved := payloadOf(b.host+"/other/repository", copied)
	b.attach("team/copied", copied, layer{moved, b.signatureOf(b.key, moved)})
	b.expect("for another repository", signedRule, "team/copied:1", copied, "accepted")
	b.expect("for another repository, with match_reference", signedRule+"match_reference = true", "team/copied:1", copied, "not for this name")

	many := make([]layer, 70)
	for i := range many {
		p := fmt.Sprintf("%s %d", payload, i)
		many[i] = layer{p, b.signatureOf(stranger, p)}
	}
	b.attach("team/copied", copied, many...)
	b.expect("too many", signedRule, "team/copied:1", copied, "more than 64 signatures")

	b.attach("team/copied", copied, layer{strings.Repeat("x", 1<<20+1), "AAAA"})
	b.expect("too large", signedRule, "team/copied:1", copied, "the most is 1048576")
	b.expect("a large manifest", signedRule, "team/large/x:1", copied, "more than 1048576 bytes")
	b.expect("a registry that answers 403", signedRule, "team/broken/x:1", copied, "check the registry")
}

func TestBundlesAtTheRegistry(t *testing.T) {
	b := newBed(t)
	b.newKey("b.pub")
	image, another := b.push("team/bundled"), b.push("team/bundled")
	b.expect("unsigned", signedRule, "team/bundled:1", image, "has no signature at")
	b.attachBundle("team/bundled", image, another, b.key, signStatement)
	b.expect("signs another image", signedRule, "team/bundled:1", image, "does not match any digest")
	b.attachBundle("team/bundled", image, image, b.newKey("c.pub"), signStatement)
	b.expect("wrong key", signedRule, "team/bundled:1", image, "not by a trusted key")
	b.attachBundle("team/bundled", image, image, b.key, vulnerability)
	b.expect("another predicate", signedRule, "team/bundled:1", image, "does not sign an image")
	b.attachBundle("team/bundled", image, image, b.key, signStatement)
	b.expect("signed", signedRule, "team/bundled:1", image, "accepted")
	b.expect("with match_reference", signedRule+"match_reference = true", "team/bundled:1", image, "has no signature at")
}

func TestRules(t *testing.T) {
	b := newBed(t)
	b.newKey("b.pub")
	image := b.push("team/a")
	before := b.requests.Load()
	rules := "[[rules]]\nprefix = \"HOST\"\naction = \"accept\"\n" + signedRule + "[[rules]]\nprefix = \"HOST/team/never\"\naction = \"refuse\"\n"
	b.expect("accepted", rules, "other/a:1", image, "accepted")
	b.expect("not the same namespace", rules, "team2/a:1", image, "accepted")
	b.expect("refused", rules, "team/never:1", image, "refuses it")
	b.expect("refused below", rules, "team/never/x:1", image, "refuses it")
	b.expect("default", "", "team/a:1", image, "the default of")
	if b.requests.Load() != before {
		t.Error("the registry was called although no signature is needed")
	}
	b.expect("unsigned, signature needed", rules, "team/a:1", image, "has no signature at")

	if accepted, reason := b.ask(strings.Replace(b.policy(signedRule), "plain_http", "#", 1), b.host+"/team/a:1", image); accepted || !strings.Contains(reason, "plain_http") && !strings.Contains(reason, "HTTP response to HTTPS client") {
		t.Errorf("without TLS: accepted: %v, %s", accepted, reason)
	}
}

func TestCredentials(t *testing.T) {
	b := newBed(t)
	b.newKey("b.pub")
	image := b.push("team/a")
	const want = "docker_config"
	rule := "docker_config = \"DIR/config.json\"\n" + signedRule
	for config, want := range map[string]string{
		`{}`: want,
		`{"auths": {"HOST": {"auth": "` + base64.StdEncoding.EncodeToString([]byte("me:secret")) + `"}}}`: "has no signature at",
		`{"auths": {"http://HOST/v2/": {"username": "me", "password": "secret"}}}`:                        "has no signature at",
		`{"auths": {"HOST/team": {"username": "me", "password": "secret"}}}`:                              want,
		`{"credHelpers": {"HOST": "pass"}}`:                                                               `helper "pass"`,
		`{"credsStore": "pass"}`:                                                                          `helper "pass"`,
		`{"auths": {"HOST": {"username": "me", "password": "secret"}, "https://HOST": {}}}`:               "more than one entry",
		`{`: "unexpected end",
	} {
		b.write("config.json", strings.ReplaceAll(config, "HOST", b.host))
		b.expect(config, rule, "team/private/a:1", image, want)
	}
}

func TestWhatIsNotAQuestion(t *testing.T) {
	b := newBed(t)
	image := b.push("team/a")
	accept := b.write("accept.toml", "default = \"accept\"\n")
	digest := image.String()
	if accepted, reason := b.askWith(accept, "-name", "docker.io/library/a:1", "-digest", digest, "-stdin-media-type", descriptorType); !accepted {
		t.Fatal(reason)
	}
	for _, args := range [][]string{
		{},
		{"-name", "docker.io/library/a:1"},
		{"-name", "docker.io/library/a:1", "-digest", digest},
		{"-name", "docker.io/library/a:1", "-digest", digest, "-stdin-media-type", "x"},
		{"-name", "docker.io/library/a:1", "-digest", digest, "-stdin-media-type", descriptorType, "more"},
		{"-name", "docker.io/library/a:1", "-digest", digest, "-stdin-media-type", descriptorType, "-other"},
		{"-name", "", "-digest", digest, "-stdin-media-type", descriptorType},
		{"-name", "a\nb", "-digest", digest, "-stdin-media-type", descriptorType},
		{"-name", "library/a:1", "-digest", digest, "-stdin-media-type", descriptorType},
		{"-name", "docker.io/../a:1", "-digest", digest, "-stdin-media-type", descriptorType},
		{"-name", "docker.io/library/a@sha256:" + strings.Repeat("0", 64), "-digest", digest, "-stdin-media-type", descriptorType},
		{"-name", "docker.io/library/a:1", "-digest", "sha256:12", "-stdin-media-type", descriptorType},
		{"-name", "docker.io/library/a:1", "-digest", "sha512:" + strings.Repeat("0", 128), "-stdin-media-type", descriptorType},
		{"-name", "docker.io/library/a:1", "-digest", "../../etc", "-stdin-media-type", descriptorType},
	} {
		if accepted, reason := b.askWith(accept, args...); accepted || !strings.HasPrefix(reason, "refused: ") {
			t.Errorf("%q: accepted: %v, %s, want a refusal", args, accepted, reason)
		}
	}
	var stdout bytes.Buffer
	args := []string{"-name", "docker.io/library/a:1", "-digest", digest, "-stdin-media-type", descriptorType}
	for _, descriptor := range []string{"", "{}", "null", `{"digest":"sha256:` + strings.Repeat("0", 64) + `"}`, strings.Repeat(" ", maxDescriptor+1)} {
		if run(args, accept, strings.NewReader(descriptor), &stdout) == 0 {
			t.Errorf("%.40q on stdin is accepted", descriptor)
		}
	}
}

func TestFiles(t *testing.T) {
	b := newBed(t)
	image := b.push("team/a")
	ask := func(path string) (bool, string) {
		return b.askWith(path, "-name", "docker.io/library/a:1", "-digest", image.String(), "-stdin-media-type", descriptorType)
	}
	writable := b.write("writable.toml", "default = \"accept\"\n")
	b.must(os.Chmod(writable, 0o620))
	for path, want := range map[string]string{
		filepath.Join(b.dir, "absent"):      "write one",
		b.dir:                               "not a regular file",
		writable:                            "chmod go-w",
		b.write("wrong.toml", "defaul = 1"): "correct",
		b.write("large.toml", "default = \"accept\"\n"+strings.Repeat("#\n", 1<<19)): "bytes",
	} {
		if accepted, reason := ask(path); accepted || !strings.Contains(reason, want) {
			t.Errorf("policy %s: accepted: %v, %s; want %q", path, accepted, reason, want)
		}
	}
	b.expect("a missing key", signedRule, "team/a:1", image, "b.pub")
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\nb\r\x1b[2Jc\u2028d": "a b  [2Jc d", "\xff": "?", "é": "é",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	if got := oneLine(strings.Repeat("é", 3000)); len(got) > maxReason+8 {
		t.Errorf("the line has %d bytes, more than the limit", len(got))
	}
}
