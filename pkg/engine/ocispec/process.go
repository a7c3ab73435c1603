package ocispec

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/moby/sys/signal"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// commandLine combines request and image as the CRI's ContainerConfig.command and args define: a
// command replaces the image's entry point and arguments, args alone replace only the image's
// arguments.
func commandLine(cfg *runtimeapi.ContainerConfig, img imagespec.ImageConfig) ([]string, error) {
	command, args := cfg.GetCommand(), cfg.GetArgs()
	if len(command) == 0 {
		command = img.Entrypoint
		// Docker builds write an unset entry point as one empty string.
		if len(command) == 1 && command[0] == "" {
			command = nil
		}
		if len(args) == 0 {
			args = img.Cmd
		}
	}
	line := slices.Concat(command, args)
	if len(line) == 0 {
		return nil, invalid("no command: neither the container nor its image has one; set command or args")
	}
	for _, a := range line {
		if strings.ContainsRune(a, 0) {
			return nil, invalid("command %q contains a NUL byte", a)
		}
	}
	return line, nil
}

// workingDir returns an absolute path; an image's relative one is relative to the root.
func workingDir(cfg *runtimeapi.ContainerConfig, img imagespec.ImageConfig) string {
	wd := cmp.Or(cfg.GetWorkingDir(), img.WorkingDir)
	return path.Join("/", wd)
}

// environ merges environments; a later value replaces an earlier one.
type environ struct {
	vars []string
	at   map[string]int
}

func (e *environ) set(entry string) {
	key, _, found := strings.Cut(entry, "=")
	if !found || key == "" {
		return // not a variable: execve would pass it, shells would drop it
	}
	if e.at == nil {
		e.at = make(map[string]int)
	}
	if i, ok := e.at[key]; ok {
		e.vars[i] = entry
		return
	}
	e.at[key] = len(e.vars)
	e.vars = append(e.vars, entry)
}

// environment merges, from weak to strong: PATH and TERM, base, HOSTNAME, image, request.
func environment(base []string, hostname string, cfg *runtimeapi.ContainerConfig, img imagespec.ImageConfig) ([]string, error) {
	var e environ
	e.set(defaultPath)
	if cfg.GetTty() {
		e.set("TERM=xterm")
	}
	for _, v := range base {
		e.set(v)
	}
	e.set("HOSTNAME=" + hostname)
	for _, v := range img.Env {
		e.set(v)
	}
	for _, kv := range cfg.GetEnvs() {
		// The OCI configuration is JSON, which is UTF-8. Go's decoder (runc, runsc) would replace
		// other bytes, and crun's would fail.
		if !utf8.Valid(kv.GetValue()) {
			return nil, unmet("environment variable %q: the value is not UTF-8, as OCI runtimes require; mount it as a file", kv.GetKey())
		}
		e.set(kv.GetKey() + "=" + string(kv.GetValue()))
	}
	return e.vars, nil
}

// ExecProcess returns the process of an exec in the container of spec: a deep copy of the
// container's process with its own arguments and terminal.
func ExecProcess(spec *specs.Spec, cmd []string, tty bool) (*specs.Process, error) {
	p, err := deepCopy(spec.Process)
	if err != nil {
		return nil, fmt.Errorf("copy the container's process: %w", err)
	}
	p.Args = slices.Clone(cmd)
	p.Terminal = tty
	p.ConsoleSize = nil
	if tty {
		e := environ{}
		for _, v := range p.Env {
			e.set(v)
		}
		e.set("TERM=xterm")
		p.Env = e.vars
	}
	return p, nil
}

// StopSignal returns the signal that asks a container to stop, and its name ("SIGTERM",
// "SIGRTMIN+3"): the request's stop_signal, else the image's, else SIGTERM. It skips the name of a
// signal that does not exist.
func StopSignal(cfg *runtimeapi.ContainerConfig, image string) (syscall.Signal, string) {
	for _, name := range []string{criSignalName(cfg.GetStopSignal()), image} {
		if name == "" {
			continue
		}
		if sig, err := signal.ParseSignal(name); err == nil && sig > 0 {
			return sig, signalNames[sig]
		}
	}
	return syscall.SIGTERM, "SIGTERM"
}

// CRISignal converts a signal's name to that of ContainerStatus.stop_signal; SIGNAL_RUNTIME_DEFAULT
// if the CRI has no name for it.
func CRISignal(name string) runtimeapi.Signal {
	name = strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)
	if v, ok := runtimeapi.Signal_value["SIGNAL_"+name]; ok {
		return runtimeapi.Signal(v)
	}
	return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
}

// criSignalName converts the enum's SIGNAL_SIGRTMINPLUS3 to RTMIN+3.
func criSignalName(s runtimeapi.Signal) string {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(strings.TrimPrefix(s.String(), "SIGNAL_"), "SIG")
	return strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name)
}

// aliases are second names of signals; signalNames has only the first.
var aliases = map[string]bool{"CLD": true, "IOT": true, "POLL": true}

var signalNames = func() map[syscall.Signal]string {
	names := make(map[syscall.Signal]string, len(signal.SignalMap))
	for name, sig := range signal.SignalMap {
		if !aliases[name] {
			names[sig] = "SIG" + name
		}
	}
	return names
}()
