package config

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// candidate checks the table of a rollout. Whether the binary is there
// and works is found out by a probe, and concerns the rollout alone.
func (c check) candidate(t *runtimeTable) {
	values, ok := c.set["candidate"].(map[string]any)
	if !ok {
		return
	}
	n := t.Candidate
	wrong := func(name, message string) {
		c.Report(tomlfile.Under(tomlfile.Under(c.key, "candidate"), name), message, "")
	}
	isShim := strings.HasPrefix(filepath.Base(n.Path), shimPrefix)
	_, given := values["percent"]
	switch {
	case n.Path == "":
		c.wrong("candidate", "needs runtime_path, the absolute path of the candidate binary", "")
	case !filepath.IsAbs(n.Path):
		wrong("runtime_path", fmt.Sprintf("%q must be an absolute path", n.Path))
	case n.Path == t.Path:
		wrong("runtime_path", "is the handler's own runtime_path; set it to the candidate binary, or remove candidate")
	case isShim != (t.handlerType() == handler.Shim):
		wrong("runtime_path", fmt.Sprintf("%s does not match the handler's runtime_type, %q", filepath.Base(n.Path), t.handlerType()))
	}
	switch {
	case !given:
		c.wrong("candidate", "needs percent, the share of new pods that run on the candidate", "")
	case n.Percent < 0 || n.Percent > 100:
		wrong("percent", "must be from 0 to 100")
	}
}
