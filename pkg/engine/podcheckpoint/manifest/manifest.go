// Package manifest describes the checkpoint of a pod: its pod, its runtime and node, and its files.
// It reads directories that others may have written, and reports why a pod cannot be restored from
// a checkpoint.
//
// A directory without a manifest is not a checkpoint: the manifest is written last, and atomically.
package manifest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/beneath"
)

const (
	// Name is the file of the manifest in a checkpoint.
	Name = "manifest.json"
	// ImagesDir is the directory, beside the manifest, that the runtime writes and reads.
	ImagesDir = "images"
	// format is the format of the manifest. Its fields are never renamed, but may be added.
	format = 1
	// maxSize limits the manifest: the CRI's messages have at most 16 MiB.
	maxSize = 16 << 20
	// maxFiles limits the files of a checkpoint; gVisor writes three.
	maxFiles = 100
)

// Manifest describes the checkpoint of one pod.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created"`
	// Sandbox is the id of the pod's sandbox.
	Sandbox string `json:"sandbox"`
	// Compression is the runtime's name of the files' compression.
	Compression string  `json:"compression"`
	Handler     Handler `json:"handler"`
	Node        Node    `json:"node"`
	// Pod is the PodSandboxConfig as protobuf's JSON.
	Pod        json.RawMessage `json:"pod"`
	Containers []Container     `json:"containers"`
	// Files are all files in ImagesDir.
	Files []File `json:"files"`
	// Checksum is the SHA-256 of the manifest's own text, computed with zeros as the checksum.
	Checksum string `json:"checksum"`
}

// Handler describes the handler of the pod.
type Handler struct {
	Name string `json:"name"`
	// Digest is the digest of the handler's definition.
	Digest string `json:"digest"`
	// Runtime is the name that the runtime reports.
	Runtime  string   `json:"runtime"`
	Binaries []Binary `json:"binaries"`
	// Flags are the runtime's global flags.
	Flags []string `json:"flags,omitempty"`
}

// Binary is a program that the pod ran on.
type Binary struct {
	Path    string `json:"path"`
	Version string `json:"version,omitempty"`
	SHA256  string `json:"sha256"`
}

// Node is the machine that the pod ran on.
type Node struct {
	Architecture string `json:"architecture"`
	Kernel       string `json:"kernel"`
	// CPUFeatures are the processor's, by the names of /proc/cpuinfo, sorted.
	CPUFeatures []string `json:"cpuFeatures"`
}

// Container is a container that was running.
type Container struct {
	Name  string `json:"name"`
	ID    string `json:"id"`
	Image Image  `json:"image"`
	// Config is the ContainerConfig as protobuf's JSON.
	Config json.RawMessage `json:"config"`
}

// Image is the image of a container.
type Image struct {
	// ID is the image's id on the node, and Ref its name by digest, if it has one.
	ID   string `json:"id"`
	Ref  string `json:"ref"`
	Name string `json:"name"`
}

// File is a file in ImagesDir.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// CRC32C also detects damage, in a sixth of the time. Neither checksum protects against a user
	// that can also write the manifest.
	CRC32C uint32 `json:"crc32c"`
}

// Size is the total size of all files, in bytes.
func (m *Manifest) Size() (total int64) {
	for _, f := range m.Files {
		total += f.Size
	}
	return total
}

// PodName returns the namespace and the name of the pod.
func (m *Manifest) PodName() (namespace, name string, err error) {
	var pod struct {
		Metadata struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(m.Pod, &pod); err != nil {
		return "", "", damaged("its pod cannot be decoded: %v", err)
	}
	return pod.Metadata.Namespace, pod.Metadata.Name, nil
}

// Encode encodes a message of the CRI for a manifest.
func Encode(m proto.Message) (json.RawMessage, error) { return protojson.Marshal(m) }

// Read reads the manifest of the checkpoint in dir, a trusted path. For invalid content it returns
// errdefs.ErrInvalidArgument.
func Read(dir string) (*Manifest, error) {
	f, err := beneath.Read(dir, Name)
	if err != nil {
		return nil, fmt.Errorf("%s has no checkpoint of a pod that can be read: %w; \"berth checkpoint list\" lists the checkpoints: %w", dir, err, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	if err := checkRootOnly(f); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint's manifest: %w", err)
	}
	if len(text) > maxSize {
		return nil, damaged("its manifest has more than %d bytes", maxSize)
	}
	m := &Manifest{}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(m); err != nil {
		return nil, damaged("its manifest cannot be decoded: %v", err)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	if m.Checksum == "" || m.Checksum != checksum(bytes.ReplaceAll(text, []byte(m.Checksum), []byte(noChecksum))) {
		return nil, damaged("its manifest was changed")
	}
	return m, nil
}

// noChecksum replaces the checksum while it is computed.
var noChecksum = strings.Repeat("0", 2*sha256.Size)

func checksum(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }

// check validates an untrusted manifest. Pure.
func (m *Manifest) check() error {
	switch {
	case m.Format != format:
		return fmt.Errorf("the checkpoint has the format %d, and this berth reads format %d; restore it with the version of berth that made it: %w", m.Format, format, errdefs.ErrInvalidArgument)
	case len(m.Containers) == 0:
		return damaged("its manifest names no containers")
	case len(m.Files) == 0 || len(m.Files) > maxFiles:
		return damaged("its manifest names %d files; the limits are 1 and %d", len(m.Files), maxFiles)
	}
	names := map[string]bool{}
	for _, c := range m.Containers {
		if c.Name == "" || names[c.Name] {
			return damaged("its manifest names the container %q twice, or leaves a name empty", c.Name)
		}
		names[c.Name] = true
	}
	files := map[string]bool{}
	for _, f := range m.Files {
		if !ValidName(f.Name) || files[f.Name] || f.Size < 0 {
			return damaged("its manifest names the file %q, which is invalid or listed twice", f.Name)
		}
		files[f.Name] = true
	}
	return nil
}

// ValidName reports whether name is a valid name of a file in ImagesDir. Pure.
func ValidName(name string) bool {
	return fs.ValidPath(name) && !strings.Contains(name, "/") && !strings.HasPrefix(name, ".")
}

// write sets the checksum of m, and writes m durably to dir.
func (m *Manifest) write(dir string) error {
	m.Checksum = noChecksum
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	m.Checksum = checksum(text)
	return atomicfile.Write(filepath.Join(dir, Name), bytes.ReplaceAll(text, []byte(noChecksum), []byte(m.Checksum)), 0o600, atomicfile.Durable)
}

// ErrDamaged is the error of a checkpoint that differs from what was written.
var ErrDamaged = errors.New("the checkpoint is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s; make another: %w", ErrDamaged, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
