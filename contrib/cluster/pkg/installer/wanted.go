package installer

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/dropin"
	"github.com/berth-cri/berth/pkg/kubeletconf"
)

// Wanted is the desired state of a node.
type Wanted struct {
	// Version is the version of the programs in the payload.
	Version string `json:"version"`
	// Endpoint is the other CRI daemon's; if empty, that of the last healthy version or the
	// kubelet's.
	Endpoint string `json:"endpoint,omitempty"`
	// Kubelet means that the kubelet uses berth. Without it, berth only runs beside the other
	// daemon.
	Kubelet bool `json:"kubelet"`
	// Config is additional configuration, in TOML.
	Config string `json:"config,omitempty"`
	// Runtimes are installed and served as handlers.
	Runtimes []Runtime `json:"runtimes,omitempty"`
}

// Runtime is a runtime to install on the node.
type Runtime struct {
	// Handler is the name in RuntimeClasses.
	Handler string `json:"handler"`
	// Kind is a key of kinds.
	Kind string `json:"kind"`
	// Version is part of the installed path.
	Version string `json:"version"`
	// Source is the path of a directory or of the program itself, as this process sees it.
	Source string `json:"source"`
	// Options are additional lines of the handler's table, in TOML.
	Options string `json:"options,omitempty"`
}

// kind describes the files of a runtime.
type kind struct {
	// program is the path of the program below the copied directory.
	program string
	// whole means that the whole directory is copied, not only the program.
	whole bool
	// config is the path of the runtime's configuration there, or empty.
	config string
	// companions are files beside the program that some releases do not have.
	companions []string
	// built is the directory that the runtime was built for; its configuration files contain it.
	built string
	// options are required lines of the handler's table.
	options []string
}

// kinds lists the known runtimes. The chart's schema has the same names.
var kinds = map[string]kind{
	"crun":  {program: "crun"},
	"runc":  {program: "runc"},
	"youki": {program: "youki"},
	"runsc": {program: "runsc", companions: []string{"gvisor-bin"}},
	"kata": {
		program: "bin/containerd-shim-kata-v2", whole: true, built: "/opt/kata",
		config:  "share/defaults/kata-containers/configuration.toml",
		options: []string{`pod_annotations = ["io.katacontainers.*"]`, "privileged_without_host_devices = true"},
	},
}

// Kinds returns the names of known runtimes, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

var (
	handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	versionName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9._+]{0,62}$`)
)

// Validate returns all mistakes in one error.
func (w Wanted) Validate() error {
	var wrong []error
	if !versionName.MatchString(w.Version) {
		wrong = append(wrong, fmt.Errorf("version %q cannot be part of a path; use letters, digits, and . _ + -", w.Version))
	}
	if w.Endpoint != "" && !strings.HasPrefix(w.Endpoint, "unix:///") {
		wrong = append(wrong, fmt.Errorf("endpoint %q is not a unix socket; write unix:///run/containerd/containerd.sock", w.Endpoint))
	}
	if kubeletconf.IsBerth(w.Endpoint) {
		wrong = append(wrong, fmt.Errorf("endpoint %q is berth's own; name the other CRI daemon's", w.Endpoint))
	}
	wrong = append(wrong, validConfig(w.Config)...)
	seen := map[string]bool{}
	for _, r := range w.Runtimes {
		wrong = append(wrong, r.validate()...)
		if seen[r.Handler] {
			wrong = append(wrong, fmt.Errorf("handler %q is given to two runtimes", r.Handler))
		}
		seen[r.Handler] = true
	}
	return errors.Join(wrong...)
}

// fixed are keys that must keep their defaults, because a removal checks only the default paths.
var fixed = []string{"engine.root", "engine.state", "server.socket"}

func validConfig(text string) (wrong []error) {
	settings, err := dropin.Parse([]byte(text))
	if err != nil {
		return []error{fmt.Errorf("config: %w", err)}
	}
	for _, s := range settings {
		if slices.Contains(fixed, s.Key) {
			wrong = append(wrong, fmt.Errorf("config sets %s, which removal relies on: leave it out, or install berth as a package", s.Key))
		}
	}
	return wrong
}

func (r Runtime) validate() (wrong []error) {
	say := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("runtime %q: "+format, append([]any{r.Handler}, args...)...))
	}
	if !handlerName.MatchString(r.Handler) {
		say("a handler's name has at most 63 lower-case letters, digits and -")
	}
	if _, known := kinds[r.Kind]; !known {
		say("kind %q is not one of %s", r.Kind, strings.Join(Kinds(), ", "))
	}
	if !versionName.MatchString(r.Version) {
		say("version %q cannot be part of a path; use letters, digits, and . _ + -", r.Version)
	}
	if !strings.HasPrefix(r.Source, "/") {
		say("source %q is not an absolute path", r.Source)
	}
	// Options follow the keys of the handler's table and must not begin another table.
	const table = "handler"
	settings, err := dropin.Parse([]byte("[" + table + "]\n" + r.Options))
	if err != nil {
		say("options: %w", err)
	}
	for _, s := range settings {
		if s.Key != table && !strings.HasPrefix(s.Key, table+".") {
			say("options set %s, which does not belong to the handler: put it into config", s.Key)
		}
	}
	return wrong
}
