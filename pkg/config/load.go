package config

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/printable"
)

// Options select the files of a configuration and how to read them. The zero value reads the
// default places.
type Options struct {
	// File is the main file. Empty means DefaultFile, which may be absent unless it was read before
	// (see gone); a named file must exist.
	File string
	// DropInDir holds drop-ins (*.toml, lexical order). Empty means conf.d beside the main file. It
	// may be absent.
	DropInDir string
	// VendorDir holds drop-ins of packages; a file in DropInDir replaces the one of the same name.
	// Empty means DefaultVendorDir. It may be absent.
	VendorDir string
	// Flags are values from the command line by their full TOML key, such as "server.socket". They
	// override every file.
	Flags map[string]string
	// SearchPath lists the directories in which runtimes are discovered, in falling precedence.
	// Empty means hostfiles.SearchDirs().
	SearchPath []string
	// Running is the current configuration during a reload; nil at a start. With it, a default
	// handler that no file defines stays, even if it is missing.
	Running *Config
	// accepted is set for a configuration that was in force before. A seccomp profile removed since
	// then fails only the pods that need it, not the node.
	accepted bool
	// Overlay replaces the texts of drop-ins, by their path in DropInDir; a nil text means an
	// absent file.
	Overlay map[string][]byte
}

// Paths returns the main file and the directories of drop-ins, including missing ones. See
// Config.Watched for all files of a configuration.
func (o Options) Paths() []string { return watched(o, Import{}) }

// Dirs returns the directories of drop-ins: the administrator's and the packages'.
func (o Options) Dirs() (dropIns, vendor string) { return o.dropInDir(), o.vendorDir() }

func (o Options) mainFile() string { return cmp.Or(o.File, DefaultFile) }

func (o Options) dropInDir() string {
	return cmp.Or(o.DropInDir, filepath.Join(filepath.Dir(o.mainFile()), "conf.d"))
}

func (o Options) vendorDir() string { return cmp.Or(o.VendorDir, DefaultVendorDir) }

func (o Options) searchPath() []string {
	if len(o.SearchPath) > 0 {
		return o.SearchPath
	}
	return hostfiles.SearchDirs()
}

func watched(o Options, i Import) []string {
	paths := []string{o.mainFile(), o.vendorDir(), o.dropInDir()}
	paths = append(paths, i.CRIO...)
	return append(paths, i.Containerd...)
}

// Load reads, merges and validates a configuration. The error is Problems with all mistakes except
// those in imported files, which only make handlers Broken. It may be called at any time from any
// goroutine.
func Load(o Options) (*Config, error) {
	cfg, mistakes := load(readAll(o), o)
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	return cfg, nil
}

func load(docs []*document, o Options) (*Config, Problems) {
	cfg, problems := assemble(docs, o)
	if o.accepted {
		problems = slices.DeleteFunc(problems, func(p Problem) bool { return p.Key == "engine.default_seccomp_profile" })
	}
	if len(problems) > 0 {
		return nil, problems.Sorted()
	}
	cfg.ReadAt = time.Now()
	for _, d := range docs {
		cfg.documents = append(cfg.documents, storedDocument{d.File, d.main, string(d.text)})
	}
	return cfg, nil
}

func clip(reason string) string { return printable.Clip(reason, hostfiles.MaxReason) }
