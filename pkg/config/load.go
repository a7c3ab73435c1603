package config

import (
	"slices"
	"time"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/printable"
)

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
