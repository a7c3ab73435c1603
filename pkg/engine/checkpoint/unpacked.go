package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/beneath"
	"github.com/berth-cri/berth/pkg/engine/wanted"
)

const (
	// maxDocument limits a description of a container, which is read into memory.
	maxDocument = 1 << 20
	// maxDeleted limits the list of removed files.
	maxDeleted = 8 << 20
	// maxImages limits CRIU's files. Each process has about ten.
	maxImages = 200_000
	// descriptorsFile is runc's record of the standard streams.
	descriptorsFile = "descriptors.json"
	standardStreams = 3
)

// Unpacked is an archive extracted to a directory. Its content is untrusted: links are not
// followed, and all sizes are limited.
type Unpacked struct {
	dir    string
	Config metadata.ContainerConfig
	// Spec is the container's spec, as far as it matters to CRIU.
	Spec *Spec
}

// Spec is the part of a container's spec that must be the same for a restore.
type Spec struct {
	Process struct {
		Terminal bool     `json:"terminal"`
		Args     []string `json:"args"`
	} `json:"process"`
	Mounts []struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Options     []string `json:"options"`
	} `json:"mounts"`
	Linux struct {
		Namespaces  []specs.LinuxNamespace `json:"namespaces"`
		MaskedPaths []string               `json:"maskedPaths"`
	} `json:"linux"`
}

// Fits returns an error that lists the differences between was and now because of which CRIU could
// not restore the container. Pure.
func (was *Spec) Fits(now *specs.Spec) error {
	var differs []string
	switch terminal := now.Process != nil && now.Process.Terminal; {
	case was.Process.Terminal && !terminal:
		differs = append(differs, "it had a terminal; set tty: true")
	case !was.Process.Terminal && terminal:
		differs = append(differs, "it had no terminal; set tty: false")
	}
	for _, m := range was.Mounts {
		if isBind(m.Type, m.Options) && !slices.ContainsFunc(now.Mounts, func(n specs.Mount) bool { return n.Destination == m.Destination }) {
			differs = append(differs, fmt.Sprintf("it had a mount at %.300q; add a volume there", m.Destination))
		}
	}
	var spaces []specs.LinuxNamespace
	var masked []string
	if now.Linux != nil {
		spaces, masked = now.Linux.Namespaces, now.Linux.MaskedPaths
	}
	if len(was.Linux.MaskedPaths) > 0 && len(masked) == 0 {
		differs = append(differs, "it had no access to masked files of /proc; set privileged: false")
	}
	for _, kind := range []struct {
		specs.LinuxNamespaceType
		named string
	}{{specs.NetworkNamespace, "hostNetwork"}, {specs.PIDNamespace, "hostPID and shareProcessNamespace"}} {
		if namespaceOwnerOf(was.Linux.Namespaces, kind.LinuxNamespaceType) != namespaceOwnerOf(spaces, kind.LinuxNamespaceType) {
			differs = append(differs, fmt.Sprintf("it had another %s namespace; set %s of the pod as it was", kind.LinuxNamespaceType, kind.named))
		}
	}
	if namespaceOwnerOf(was.Linux.Namespaces, specs.UserNamespace) != hostNamespace {
		differs = append(differs, "it had a user namespace, which the runtime's CRIU does not support")
	}
	if len(differs) == 0 {
		return nil
	}
	return fmt.Errorf("the checkpoint cannot be restored in this container: %s: %w", strings.Join(differs, "; "), errdefs.ErrFailedPrecondition)
}

func isBind(kind string, options []string) bool {
	return kind == "bind" || slices.Contains(options, "bind") || slices.Contains(options, "rbind")
}

// namespaceOwner is the owner of a container's namespace.
type namespaceOwner int

const (
	hostNamespace namespaceOwner = iota
	ownNamespace
	joinedNamespace
)

func namespaceOwnerOf(all []specs.LinuxNamespace, kind specs.LinuxNamespaceType) namespaceOwner {
	for _, n := range all {
		if n.Type != kind {
			continue
		}
		if n.Path == "" {
			return ownNamespace
		}
		return joinedNamespace
	}
	return hostNamespace
}

// Unpack reads an archive's description of its container. It returns errdefs.ErrInvalidArgument if
// the archive is not a checkpoint, or is inconsistent.
func Unpack(dir string) (*Unpacked, error) {
	u := &Unpacked{dir: dir, Spec: &Spec{}}
	var streams []string
	for _, part := range []struct {
		name string
		into any
	}{
		{metadata.ConfigDumpFile, &u.Config},
		{metadata.SpecDumpFile, u.Spec},
		{filepath.Join(metadata.CheckpointDirectory, descriptorsFile), &streams},
	} {
		text, err := readBounded(dir, part.name, maxDocument)
		if err == nil {
			err = json.Unmarshal(text, part.into)
		}
		if err != nil {
			return nil, invalid(part.name, err)
		}
	}
	// For each further stream, the runtime would pass one of its own files to the container.
	if len(streams) > standardStreams {
		return nil, invalid(descriptorsFile, fmt.Errorf("%d standard streams", len(streams)))
	}
	return u, nil
}

func invalid(part string, err error) error {
	return fmt.Errorf("archive of a checkpoint: %s: %w: %w", part, err, errdefs.ErrInvalidArgument)
}

func readBounded(dir, name string, most int64) ([]byte, error) {
	f, err := beneath.Read(dir, name)
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("larger than %d bytes", most)
	}
	return text, err
}

// reason returns an error without its path, which has no meaning for the client.
func reason(err error) error {
	if p, is := errors.AsType[*fs.PathError](err); is {
		return p.Err
	}
	return err
}

// Images copies CRIU's files to a directory, which it creates for root only. If ctx ends, Images
// returns the error of ctx and leaves the copied files.
func (u *Unpacked) Images(ctx context.Context, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	dir, err := os.OpenFile(filepath.Join(u.dir, metadata.CheckpointDirectory), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return invalid(metadata.CheckpointDirectory, reason(err))
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxImages + 1)
	if err != nil {
		return invalid(metadata.CheckpointDirectory, err)
	}
	if len(names) > maxImages {
		return invalid(metadata.CheckpointDirectory, fmt.Errorf("more than %d files", maxImages))
	}
	if err := u.fits(names, to); err != nil {
		return err
	}
	for _, name := range names {
		if err := u.image(ctx, name, to); err != nil {
			return err
		}
	}
	return nil
}

func (u *Unpacked) fits(names []string, to string) error {
	var room unix.Statfs_t
	if err := unix.Statfs(to, &room); err != nil {
		return &fs.PathError{Op: "statfs", Path: to, Err: err}
	}
	free := room.Bavail * uint64(room.Bsize) //nolint:gosec // not negative
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(u.dir, metadata.CheckpointDirectory, name))
		if err != nil {
			return invalid(name, reason(err))
		}
		size := uint64(info.Size()) //nolint:gosec // not negative
		if size > free {
			return fmt.Errorf("no space left under %s for the memory of the container: %w", to, errdefs.ErrResourceExhausted)
		}
		free -= size
	}
	return nil
}

func (u *Unpacked) image(ctx context.Context, name, to string) error {
	name = filepath.Join(metadata.CheckpointDirectory, name)
	from, err := beneath.Read(u.dir, name)
	if err != nil {
		return invalid(name, reason(err))
	}
	defer from.Close()
	out, err := os.OpenFile(filepath.Join(to, filepath.Base(name)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(wanted.Copy(ctx, out, from), out.Close())
}
