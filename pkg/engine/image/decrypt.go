package image

import (
	"context"
	"crypto/aes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/blockcipher"
	"github.com/containers/ocicrypt/config"
	"github.com/containers/ocicrypt/helpers"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/trusted"
)

// encryptedSuffix ends the media type of an encrypted layer; before it is that
// of the layer inside.
const encryptedSuffix = "+encrypted"

// decryption is the name under which the unpacker hands a layer's encryptedLayer
// to its decrypter.
const decryption = "berth.dev/decryption"

// The list of processors is containerd's and for the whole process; it is read
// without a lock, so it cannot change later.
func init() { diff.RegisterProcessor(decrypter) }

// encryptedLayer is what must be known to open a layer. It passes through
// containerd's unpacker, in memory only.
type encryptedLayer struct {
	keysDir string
	desc    imagespec.Descriptor
}

var _ typeurl.Any = (*encryptedLayer)(nil)

// GetTypeUrl implements typeurl.Any.
func (*encryptedLayer) GetTypeUrl() string { return decryption } //nolint:revive // the interface's name

// GetValue implements typeurl.Any; nobody may read it.
func (*encryptedLayer) GetValue() []byte { return nil }

// decryptError is an encrypted layer that this node cannot open.
type decryptError struct {
	keysDir string
	error
}

func (e *decryptError) Unwrap() error { return e.error }

func isLocked(err error) bool {
	_, ok := errors.AsType[*decryptError](err)
	return ok
}

// keysAdvice says what to do about a decryptError.
func keysAdvice(err error) string {
	if e, _ := errors.AsType[*decryptError](err); e.keysDir != "" {
		return fmt.Sprintf("no key in %s decrypts it; put its private key there", e.keysDir)
	}
	return "this node has no decryption keys; set registry.decryption_keys_path to a directory of keys"
}

// withKeys tells the decrypter of a layer where the node's keys are.
func withKeys(keysDir string) diff.ApplyOpt {
	return func(_ context.Context, desc imagespec.Descriptor, c *diff.ApplyConfig) error {
		if !strings.HasSuffix(desc.MediaType, encryptedSuffix) {
			return nil
		}
		if c.ProcessorPayloads == nil {
			c.ProcessorPayloads = map[string]typeurl.Any{}
		}
		c.ProcessorPayloads[decryption] = &encryptedLayer{keysDir: keysDir, desc: desc}
		return nil
	}
}

// decrypter is a diff.Handler for encrypted layers.
func decrypter(_ context.Context, mediaType string) (diff.StreamProcessorInit, bool) {
	plain, encrypted := strings.CutSuffix(mediaType, encryptedSuffix)
	if !encrypted {
		return nil, false
	}
	return func(ctx context.Context, stream diff.StreamProcessor, payloads map[string]typeurl.Any) (diff.StreamProcessor, error) {
		layer, ok := payloads[decryption].(*encryptedLayer)
		if !ok {
			return nil, fmt.Errorf("the directory of decryption keys is not set: %w", errdefs.ErrInternal)
		}
		keys, err := readKeys(layer.keysDir)
		if err != nil {
			return nil, &decryptError{layer.keysDir, err}
		}
		opened, err := open(ctx, keys, stream, layer.desc)
		if err != nil {
			return nil, &decryptError{layer.keysDir, err}
		}
		return &openedLayer{Reader: opened, Closer: stream, mediaType: plain}, nil
	}, true
}

// open opens a layer with the keys that are there.
func open(ctx context.Context, keys *config.DecryptConfig, stream io.Reader, desc imagespec.Descriptor) (opened io.Reader, err error) {
	if err := checkEncryption(desc); err != nil {
		return nil, err
	}
	// What the keys unwrap is not trusted either, and is used unlooked at.
	defer caught(ctx, &err)
	opened, _, err = ocicrypt.DecryptLayer(keys, stream, desc, false)
	return opened, err
}

const (
	// encryptionPrefix begins the annotations of an encrypted layer that are read.
	encryptionPrefix  = "org.opencontainers.image.enc."
	wrappedKeyPrefix  = encryptionPrefix + "keys."
	cipherAnnotation  = encryptionPrefix + "pubopts"
	maxWrappedKeys    = 128
	maxWrappedKeySize = 16 << 10
)

// checkEncryption checks what an encrypted layer says of itself: the number of
// keys, each of which costs time, and the nonce, whose length nobody else checks.
func checkEncryption(desc imagespec.Descriptor) error {
	if strings.Contains(strings.TrimSuffix(desc.MediaType, encryptedSuffix), encryptedSuffix) {
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
	text, err := base64.StdEncoding.DecodeString(desc.Annotations[cipherAnnotation])
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

// openedLayer is what is inside of an encrypted layer.
type openedLayer struct {
	io.Reader
	io.Closer
	mediaType string
}

// MediaType implements diff.StreamProcessor.
func (l *openedLayer) MediaType() string { return l.mediaType }

// readKeys reads all keys below dir; other files in it are passed over. Links in
// it are not followed: where it is a mounted Secret, each key would count twice.
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
