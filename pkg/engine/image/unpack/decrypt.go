package unpack

import (
	"context"
	"crypto/aes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/blockcipher"
	"github.com/containers/ocicrypt/config"
	"github.com/containers/ocicrypt/helpers"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/trusted"
)

// DecryptError reports an encrypted layer that this node cannot open.
type DecryptError struct {
	keysDir string
	error
}

func (e *DecryptError) Unwrap() error { return e.error }

// KeysAdvice returns advice on a layer that cannot be decrypted.
func KeysAdvice(err error) string {
	if e, _ := errors.AsType[*DecryptError](err); e.keysDir != "" {
		return fmt.Sprintf("no key in %s decrypts it; put its private key there", e.keysDir)
	}
	return "this node has no decryption keys; set registry.decryption_keys_path to a directory of keys"
}

// decrypted opens an encrypted layer. End closes plain, waits for the decryption and returns its
// error, for example if the layer is not authentic.
func (a *applier) decrypted(ctx context.Context, desc imagespec.Descriptor) (plain *os.File, end func() error, err error) {
	if _, err := images.DiffCompression(ctx, strings.TrimSuffix(desc.MediaType, catalog.EncryptedSuffix)); err != nil {
		return nil, nil, fmt.Errorf("open layer of type %s: %w", desc.MediaType, err)
	}
	keys, err := readKeys(a.KeysDir)
	if err != nil {
		return nil, nil, &DecryptError{a.KeysDir, err}
	}
	blob, err := a.files.Content.ReaderAt(ctx, desc)
	if err != nil {
		return nil, nil, err
	}
	opened, err := decrypt(ctx, keys, content.NewReader(blob), desc)
	if err != nil {
		return nil, nil, errors.Join(&DecryptError{a.KeysDir, err}, blob.Close())
	}
	plain, to, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, blob.Close())
	}
	copied := make(chan error, 1)
	go func() { copied <- errors.Join(copyDecrypted(ctx, to, opened), to.Close(), blob.Close()) }()
	return plain, func() error {
		_ = plain.Close() // ends the copy if the child has stopped reading
		return <-copied
	}, nil
}

// copyDecrypted copies until the layer ends, or until its reader closes.
func copyDecrypted(ctx context.Context, to io.Writer, from io.Reader) (err error) {
	defer disk.Caught(ctx, &err)
	if _, err = io.Copy(to, from); errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

func decrypt(ctx context.Context, keys *config.DecryptConfig, stream io.Reader, desc imagespec.Descriptor) (opened io.Reader, err error) {
	if err := checkEncryption(desc); err != nil {
		return nil, err
	}
	// The library may panic, because it does not check the unwrapped data, which is untrusted.
	defer disk.Caught(ctx, &err)
	opened, _, err = ocicrypt.DecryptLayer(keys, stream, desc, false)
	return opened, err
}

const (
	wrappedKeyPrefix = catalog.EncryptionPrefix + "keys."
	// CipherAnnotation holds the options of the cipher.
	CipherAnnotation  = catalog.EncryptionPrefix + "pubopts"
	maxWrappedKeys    = 128
	maxWrappedKeySize = 16 << 10
)

// checkEncryption checks the annotations of an encrypted layer: the number of keys, each of which
// costs time, and the length of the nonce, which the library does not check.
func checkEncryption(desc imagespec.Descriptor) error {
	if strings.Contains(strings.TrimSuffix(desc.MediaType, catalog.EncryptedSuffix), catalog.EncryptedSuffix) {
		return fmt.Errorf("layer is encrypted more than once: %w", errdefs.ErrInvalidArgument)
	}
	n := 0
	for name, value := range desc.Annotations {
		if !strings.HasPrefix(name, wrappedKeyPrefix) {
			continue
		}
		for key := range strings.SplitSeq(value, ",") {
			if n++; n > maxWrappedKeys || len(key) > maxWrappedKeySize {
				return bounds.Beyond("layer is encrypted for more than %d keys, or one has more than %d bytes", maxWrappedKeys, maxWrappedKeySize)
			}
		}
	}
	text, err := base64.StdEncoding.DecodeString(desc.Annotations[CipherAnnotation])
	if err != nil || len(text) == 0 {
		return err
	}
	var public blockcipher.PublicLayerBlockCipherOptions
	if err := json.Unmarshal(text, &public); err != nil {
		return fmt.Errorf("read the cipher's options: %w", err)
	}
	if nonce, ok := public.CipherOptions["nonce"]; ok && len(nonce) != aes.BlockSize {
		return fmt.Errorf("nonce of the cipher has %d bytes, want %d: %w", len(nonce), aes.BlockSize, errdefs.ErrInvalidArgument)
	}
	return nil
}

// readKeys reads all keys below dir, and skips other files. It does not follow links in dir: in a
// mounted Secret each key would count twice.
func readKeys(dir string) (*config.DecryptConfig, error) {
	var files []string
	if dir != "" {
		// The directory itself may be a link: a walk does not follow its root.
		root, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return &config.DecryptConfig{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		if strings.Contains(root, ":") {
			return nil, fmt.Errorf("read keys: the name of %s must not contain ':'", root)
		}
		err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if strings.Contains(path, ":") {
				log.L.WithField("path", path).Warn("Skipping decryption key: its name must not contain ':'")
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if e.Type().IsRegular() {
				files = append(files, path)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		if err := trusted.Keys(dir, files); err != nil {
			return nil, err
		}
	}
	keys, err := helpers.CreateDecryptCryptoConfig(files, nil)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	if keys.DecryptConfig == nil {
		return &config.DecryptConfig{}, nil
	}
	return keys.DecryptConfig, nil
}
