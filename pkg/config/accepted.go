package config

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/record"
	"github.com/berth-cri/berth/pkg/trust"
)

const (
	// acceptedFormat is the format version of the stored file.
	acceptedFormat = 1
	// maxAccepted bounds the stored file, in bytes.
	maxAccepted = 16 << 20
)

// storedConfig is the last accepted configuration on disk. It keeps the texts of the files, so that
// a start validates them like the files themselves.
type storedConfig struct {
	ReadAt    time.Time        `json:"readAt"`
	Documents []storedDocument `json:"documents"`
}

// Start is Load for a daemon's start. If the files have mistakes, it returns the last accepted
// configuration with the mistakes in Rejected. Without a usable one, the mistakes are the error.
func Start(o Options) (*Config, error) {
	cfg, mistakes := load(readAll(o), o)
	if len(mistakes) == 0 {
		return cfg, nil
	}
	cfg, err := loadAccepted(o)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, mistakes
	case err != nil:
		return nil, fmt.Errorf("%w\nthe last accepted configuration cannot be used instead: %s: %w", mistakes, o.AcceptedFile(), err)
	}
	cfg.Rejected = mistakes
	return cfg, nil
}

// AcceptedFile returns the path of the last accepted configuration for these options. It does not
// depend on configuration files: a mistake in one must not hide it.
func (o Options) AcceptedFile() string {
	root := cmp.Or(o.Flags["engine.root"], Default().Engine.Root)
	places := sha256.Sum256([]byte(strings.Join(o.Paths(), "\x00")))
	return filepath.Join(root, "accepted-config", fmt.Sprintf("%x.json", places[:8]))
}

// KeepAccepted stores c, the current configuration, as the last accepted one. It first removes the
// stored one, which may isolate pods less and must not stay after an error.
func (c *Config) KeepAccepted(o Options) error {
	if kept, err := readAccepted(o); err == nil && slices.Equal(kept.Documents, c.documents) {
		return nil // keep the stored file even if the disk is full
	}
	if err := atomicfile.Remove(o.AcceptedFile()); err != nil {
		return err
	}
	text, err := record.Encode(acceptedFormat, storedConfig{c.ReadAt, c.documents})
	if err != nil {
		return err
	}
	if len(text) > maxAccepted {
		return fmt.Errorf("the stored configuration would have %d bytes; the limit is %d", len(text), maxAccepted)
	}
	if err := os.MkdirAll(filepath.Dir(o.AcceptedFile()), 0o711); err != nil {
		return err
	}
	return atomicfile.Write(o.AcceptedFile(), text, 0o600, atomicfile.Durable)
}

func readAccepted(o Options) (s storedConfig, err error) {
	text, err := trust.ReadFile(o.AcceptedFile(), trust.Configuration)
	if err == nil {
		err = record.Decode(text, acceptedFormat, &s)
	}
	return s, err
}

// gone returns the mistake if the last accepted configuration was read from a missing main file or
// directory, else "".
func gone(kind, place string, o Options) string {
	before, _ := readAccepted(o)
	if o.Running != nil {
		before.Documents = o.Running.documents
	}
	for _, d := range before.Documents {
		if d.File == place || !d.Main && filepath.Dir(d.File) == filepath.Clean(place) {
			return fmt.Sprintf("the %[1]s does not exist, but the last accepted configuration was read from it; restore it, or create an empty %[1]s to drop its settings", kind)
		}
	}
	return ""
}

func loadAccepted(o Options) (*Config, error) {
	s, err := readAccepted(o)
	if err != nil {
		return nil, err
	}
	var docs []*document
	for _, stored := range s.Documents {
		d := parse(stored.File, []byte(stored.Text))
		d.main = stored.Main
		docs = append(docs, d)
	}
	o.accepted = true
	cfg, mistakes := load(docs, o)
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	cfg.ReadAt = s.ReadAt
	return cfg, nil
}
