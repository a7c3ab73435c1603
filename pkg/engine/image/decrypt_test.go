package image

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containers/ocicrypt/config"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// keyPair generates an RSA key and returns both halves as PEM.
func keyPair(t *testing.T) (private, public []byte) {
	t.Helper()
	key := test.Value(rsa.GenerateKey(rand.Reader, 2048))(t)
	der := test.Value(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// encrypt returns img as containerd's imgcrypt encrypts it for the owner of a
// public key.
func encrypt(t *testing.T, img v1.Image, public []byte) v1.Image {
	t.Helper()
	dir := t.TempDir()
	path := test.Value(layout.Write(dir, indexOf(nil)))(t)
	test.Must(t, path.AppendImage(img))
	blobs := test.Value(local.NewStore(dir))(t)
	manifest := test.Value(img.RawManifest())(t)
	mediaType := test.Value(img.MediaType())(t)
	desc := imagespec.Descriptor{MediaType: string(mediaType), Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}

	recipient := test.Value(config.EncryptWithJwe([][]byte{public}))(t)
	all := func(imagespec.Descriptor) bool { return true }
	desc, changed, err := encryption.EncryptImage(t.Context(), blobs, desc, &recipient, all)
	test.Must(t, err)
	if !changed {
		t.Fatal("nothing was encrypted")
	}
	b := test.Value(content.ReadBlob(t.Context(), blobs, desc))(t)
	if n := bytes.Count(b, []byte(catalog.EncryptedSuffix)); n == 0 {
		t.Fatalf("no layer is encrypted in %s", b)
	}
	// containerd's content store is a directory of the same form as an image layout.
	h := v1.Hash{Algorithm: "sha256", Hex: desc.Digest.Encoded()}
	test.Must(t, path.AppendDescriptor(v1.Descriptor{MediaType: types.MediaType(desc.MediaType), Size: desc.Size, Digest: h}))
	return test.Value(path.Image(h))(t)
}

func TestEncryptedImage(t *testing.T) {
	reg := newTestRegistry(t)
	private, public := keyPair(t)
	plain := layered(t, v1.Config{})
	reg.push(t, "app:1", encrypt(t, plain, public))
	for _, snapshotter := range []string{disk.Overlayfs, disk.Native} {
		keys := t.TempDir()
		test.Must(t, os.MkdirAll(filepath.Join(keys, "team"), 0o700))
		other, _ := keyPair(t)
		for name, body := range map[string][]byte{"README": []byte("no key"), "another.pem": other, "team/app.pem": private} {
			test.Must(t, os.WriteFile(filepath.Join(keys, name), body, 0o600))
		}
		test.Must(t, os.Symlink("another.pem", filepath.Join(keys, "link.pem")))
		test.Must(t, os.WriteFile(filepath.Join(keys, "not:read.pem"), other, 0o600))
		link := filepath.Join(t.TempDir(), "keys")
		test.Must(t, os.Symlink(keys, link))
		s := openStore(t, Config{HostsDir: reg.hosts(t), DecryptionKeysDir: link, DefaultSnapshotter: snapshotter})
		img := pullImage(t, s, domain+"/app:1")
		if img.ID != idOf(t, plain) {
			t.Errorf("%s: id %s, want the plain image's %s", snapshotter, img.ID, idOf(t, plain))
		}
		root := test.Value(s.PrepareRootfs(t.Context(), "c", img, "", nil))(t)
		sameTree(t, tree(t, mounted(t, root.Mounts)), layeredTree)
	}
}

func TestEncryptedImageWithoutItsKey(t *testing.T) {
	reg := newTestRegistry(t)
	private, public := keyPair(t)
	other, _ := keyPair(t)
	reg.push(t, "app:1", encrypt(t, layered(t, v1.Config{}), public))
	colon := filepath.Join(t.TempDir(), "a:b")
	test.Must(t, os.MkdirAll(colon, 0o700))
	wrong := t.TempDir()
	test.Must(t, os.WriteFile(filepath.Join(wrong, "other.pem"), other, 0o600))
	for name, c := range map[string]struct{ dir, says string }{
		"no directory":      {"", "decryption_keys_path"},
		"missing directory": {filepath.Join(wrong, "none"), "put its private key there"},
		"empty directory":   {t.TempDir(), "put its private key there"},
		"another key":       {wrong, "put its private key there"},
		"colon in the path": {colon, "must not contain ':'"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, Config{HostsDir: reg.hosts(t), DecryptionKeysDir: c.dir})
			_, err := s.Pull(t.Context(), pull.Request{Ref: domain + "/app:1"})
			if !errdefs.IsFailedPrecondition(err) {
				t.Fatalf("the error is %v of class %v, want a failed precondition", err, errdefs.Resolve(err))
			}
			if text := err.Error(); !strings.Contains(text, c.says) || !strings.Contains(text, "encrypted") || !strings.Contains(text, c.dir) ||
				strings.Contains(text, "\n") || len(text) > 1024 {
				t.Errorf("the error is %q; want one short line with %q, %q and \"encrypted\"", text, c.says, c.dir)
			}
			wantStored(t, s, 0, 0)
		})
	}
	// A key that is added later is used without a restart.
	s := openStore(t, Config{HostsDir: reg.hosts(t), DecryptionKeysDir: wrong})
	test.Must(t, os.WriteFile(filepath.Join(wrong, "app.pem"), private, 0o600))
	pullImage(t, s, domain+"/app:1")
}
