// Package verifier has berth call the image verifier of contrib before it pulls, with real keys and
// signatures at a real registry.
package verifier

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// installed builds the verifier, as its documentation describes, into a new directory.
func installed(t *testing.T) (dir string) {
	t.Helper()
	root, err := testbed.Repository()
	testbed.Must(t, err)
	// berth does not run verifiers from a directory that other users can write to.
	dir, err = os.MkdirTemp("/opt", "berth-verifier-")
	testbed.Must(t, err)
	t.Cleanup(func() { testbed.Must(t, os.RemoveAll(dir)) })
	testbed.Must(t, os.Chmod(dir, 0o755))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "berth-verify-sigstore"), "./berth-verify-sigstore")
	cmd.Dir = filepath.Join(root, "contrib", "verifier")
	cmd.Env = append(os.Environ(), "GOWORK=off") // its module is not in the workspace
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the verifier: %v: %s", err, out)
	}
	return dir
}

// signature returns what cosign pushes for an image: a signed payload with the image's digest.
func signature(t *testing.T, key *ecdsa.PrivateKey, of v1.Hash) v1.Image {
	t.Helper()
	payload := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, of)
	sum := sha256.Sum256([]byte(payload))
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	testbed.Must(t, err)
	image, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer:       static.NewLayer([]byte(payload), "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)},
	})
	testbed.Must(t, err)
	return image
}

func TestOnlySignedImagesArePulled(t *testing.T) {
	testbed.NeedRoot(t)
	bin := installed(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testbed.Must(t, err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	testbed.Must(t, err)
	keyFile, policy := filepath.Join(bin, "..", filepath.Base(bin)+"-key.pub"), filepath.Join(bin, "..", filepath.Base(bin)+"-verify.toml")
	t.Cleanup(func() { _, _ = os.Remove(keyFile), os.Remove(policy) })
	testbed.Must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))

	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	push := func(name string) (reference string, digest v1.Hash) {
		image := testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "name", Mode: 0o644, Body: []byte(name)}))
		digest, err := image.Digest()
		testbed.Must(t, err)
		return registry.Push(t, "team/"+name+":1", image), digest
	}
	sign := func(name string, digest v1.Hash) {
		registry.Push(t, "team/"+name+":"+strings.ReplaceAll(digest.String(), ":", "-")+".sig", signature(t, key, digest))
	}
	signed, digest := push("signed")
	sign("signed", digest)
	unsigned, _ := push("unsigned")
	borrowed, _ := push("borrowed")
	sign("borrowed", digest) // the signature of another image
	testbed.Must(t, os.WriteFile(policy, fmt.Appendf(nil, "default = \"refuse\"\nplain_http = [%[1]q]\n[[rules]]\nprefix = \"%[1]s/team\"\naction = \"signed\"\nkeys = [%[2]q]\n", registry.Host, keyFile), 0o600))

	b := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{registry},
		Config:      fmt.Sprintf("[image_verifier]\nbin_dir = %q\nper_verifier_timeout = \"25s\"\n", bin),
		Environment: []string{"BERTH_VERIFY_POLICY=" + policy},
	})
	b.Client.RunPod(t, testbed.PodSpec{Image: signed, Command: []string{"sleep", "1000"}}).Remove(t)
	for _, image := range []string{unsigned, borrowed} {
		_, err := b.Client.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		if err == nil || !strings.Contains(err.Error(), "SignatureValidationFailed") {
			t.Errorf("pull %s: %v, want a refusal", image, err)
		}
	}
	testbed.Must(t, os.WriteFile(policy, []byte("defualt = \"accept\"\n"), 0o600))
	if _, err := b.Client.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: signed}}); err == nil || !strings.Contains(err.Error(), "defualt") {
		t.Errorf("pull with a mistake in the policy: %v, want a refusal", err)
	}
}
