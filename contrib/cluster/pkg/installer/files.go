package installer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/nodefs"
)

// signature begins the first line of each configuration file of the installer. The digest of the
// other lines follows, and reveals edits.
const signature = "# Written by berth-installer. Each run writes it anew, and keeps an edit beside it. Digest: "

func signed(text string) string { return signature + digest(text) + "\n" + text }

// isSigned reports whether a version of the installer wrote the text, and it was not edited since.
func isSigned(text string) bool {
	rest, ours := strings.CutPrefix(text, signature)
	sum, rest, found := strings.Cut(rest, "\n")
	return ours && found && sum == digest(rest)
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// configTexts returns the configuration of a berth that forwards all pods to the other daemon.
// Because the main file has a handler, berth does not discover runtimes on the node.
func configTexts(b Beside, extra string) map[string]string {
	table := func(name, there string) string {
		return fmt.Sprintf("[runtimes.%q]\nendpoint = %q\nremote_handler = %q\n", name, b.Endpoint, there)
	}
	main := fmt.Sprintf("version = 1\ndefault_runtime = %q\n", b.name())
	if b.CgroupDriver != "" {
		main += fmt.Sprintf("\n[engine]\ncgroup_driver = %q\n", b.CgroupDriver)
	}
	texts := map[string]string{
		configFile:          signed(main + "\n" + table(b.name(), "")),
		dropIns + "/README": signed("# Keep this directory even without drop-ins: berth rejects a configuration if the directory is missing.\n"),
	}
	for _, name := range b.Handlers {
		if name != b.name() {
			texts[handlerFile(name)] = signed(table(name, name))
		}
	}
	if extra != "" {
		texts[extraFile] = signed(strings.TrimRight(extra, "\n") + "\n")
	}
	return texts
}

func handlerFile(handler string) string { return filepath.Join(dropIns, "50-"+handler+".toml") }

// writeFiles writes berth's configuration files, by path, and removes other files that the
// installer wrote.
func (i *Installer) writeFiles(st *state, files map[string]string) error {
	paths := slices.Concat(slices.Collect(maps.Keys(files)), slices.Collect(maps.Keys(st.Healthy.Files)), i.root().Matching([]string{configFile, dropIns + "/*", filepath.Dir(configFile) + "/.*.new"}))
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		if name := filepath.Base(path); strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".new") { // left by a killed write
			if err := i.root().Remove(path); err != nil {
				return err
			}
			continue
		}
		text, wanted := files[path]
		_, ours := st.Healthy.Files[path]
		if err := i.writeFile(path, text, wanted, ours); err != nil {
			return err
		}
		i.at("installer.config.half")
	}
	if len(files) == 0 {
		st.leave(dropIns)
		st.leave(filepath.Dir(dropIns))
	}
	i.at("installer.config.done")
	return nil
}

// keptSuffix is the suffix of copies of edited files. berth does not read them.
const keptSuffix = ".kept"

// writeFile writes a file or, if it is not wanted, removes it. A file that is not ours is removed
// only if it begins with signature, even if it was edited. An edited file is copied first.
func (i *Installer) writeFile(path, text string, wanted, ours bool) error {
	now, err := os.ReadFile(i.root().Resolved(path))
	switch {
	case !wanted && !ours && !strings.HasPrefix(string(now), signature):
		return nil // written by others
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
	case err != nil:
		return err
	case wanted && string(now) == text:
		return nil
	case !isSigned(string(now)):
		log.L.WithField("path", path).WithField("kept", path+keptSuffix).Warn("File was edited since it was installed; keeping the edit beside it")
		if err := atomicfile.Write(i.root().Path(path+keptSuffix), now, 0o600, atomicfile.Durable); err != nil {
			return err
		}
	}
	if !wanted {
		return i.root().Remove(path)
	}
	return i.root().Put(path, []byte(text), 0o644)
}

// programs copies the programs, including the installer, to the directory of their version.
func (r *run) programs(ctx context.Context) error {
	bin := filepath.Join(home, r.w.Version, "bin")
	log.G(ctx).WithField("path", bin).Info("Copying missing programs")
	if err := r.root().Copy(filepath.Join(r.Payload, "bin"), bin, nil, func() { r.at("installer.programs.half") }); err != nil {
		return err
	}
	if self := filepath.Join(bin, "berth-installer"); !r.root().ExistsAny(self) {
		if err := nodefs.CopyFile(r.Self, r.root().Path(self)); err != nil {
			return err
		}
	}
	r.at("installer.programs.done")
	return r.relabel(ctx)
}

// relabel gives the files in home the SELinux labels of their paths. Files that a pod wrote have
// the pod's label, with which systemd does not start programs.
func (i *Installer) relabel(ctx context.Context) error {
	if !i.root().ExistsAny("/sys/fs/selinux/enforce") || !i.root().ExistsAny("/usr/sbin/restorecon", "/sbin/restorecon") {
		return nil
	}
	_, err := i.Host.Run(ctx, "restorecon", "-R", home)
	return err
}
