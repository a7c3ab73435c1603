package config

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/printable"
)

// Options are where a configuration is and how strictly it is taken. The zero
// value is the strict reading of the default places.
type Options struct {
	// File is the main file. Empty is DefaultFile, which may be absent; a file
	// that is named must exist. What may be absent must not go away: see gone.
	File string
	// DropInDir holds drop-ins (*.toml, lexical order). Empty is conf.d beside
	// the main file. It may be absent.
	DropInDir string
	// VendorDir holds drop-ins of packages, which a file of the same name in
	// DropInDir replaces. Empty is DefaultVendorDir. It may be absent.
	VendorDir string
	// Flags are values from the command line by their full TOML key, such as
	// "server.socket". They win over every file.
	Flags map[string]string
	// SearchPath are the directories in which runtimes are discovered, the
	// first having precedence. Empty is SearchDirs().
	SearchPath []string
	// Running is what a daemon has loaded before, for one that reads its files
	// again; nil at its start. A default handler that no file defines stays then,
	// though it is away.
	Running *Config
	// accepted is set if this was in force once. A profile whose file has gone since then costs
	// the pods that need it, and not the node.
	accepted bool
	// Overlay are drop-ins, by their path in DropInDir, that are read as if they
	// were files with that text; nil is none, whatever is on disk.
	Overlay map[string][]byte
}

// Paths are the main file and the directories of drop-ins, whether they exist or
// not. See Config.Watched for all that a configuration is read from.
func (o Options) Paths() []string { return watched(o, Import{}) }

// Dirs are the directories of drop-ins: the administrator's, and the packages'.
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

// Load reads, merges and validates a configuration. The error is Problems with
// every mistake there is, but for those in imported files: these only make
// handlers Broken. It may be called at any time from any goroutine.
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
