package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// configuration reports mistakes in the configuration files, with their position.
func configuration(n Node) []Finding {
	var found []Finding
	if n.ConfigError != nil {
		for _, p := range problems(n.ConfigError) {
			found = append(found, fail(p, `correct it, then run "berth check" and "berth reload --wait"`))
		}
		return found
	}
	for _, p := range n.Config.Problems {
		if n.breaks(p) {
			continue
		}
		found = append(found, fail(p.Error(), `correct it, then run "berth check" and "berth reload --wait"`))
	}
	for _, p := range n.Config.Helpers() {
		found = append(found, fail(p.Error(), "reinstall the berth package"))
	}
	if n.Config.Discovered {
		return or(found, fmt.Sprintf("no handlers configured; discovered: %d", len(n.Config.Runtimes)))
	}
	return or(found, fmt.Sprintf("no mistakes outside the handlers; configuration files read: %d", len(n.Config.Sources)))
}

// breaks reports whether a problem keeps a handler from running pods. The check "handlers" reports
// such problems.
func (n Node) breaks(p config.Problem) bool {
	return slices.ContainsFunc(n.Config.Broken, func(b config.Broken) bool {
		return strings.HasPrefix(p.Error(), strings.TrimSuffix(b.Reason, "..."))
	})
}

func problems(err error) []string {
	var all config.Problems
	if !errors.As(err, &all) {
		return []string{err.Error()}
	}
	return all.Lines()
}

// handlers reports the handlers that cannot run pods because of their configuration or files.
func handlers(n Node) []Finding {
	var found []Finding
	for _, b := range n.Config.Broken {
		found = append(found, fail(fmt.Sprintf("handler %q cannot run pods: %s", b.Name, b.Reason), "correct "+b.Origin))
	}
	for _, d := range n.Config.Runtimes {
		if n.Root == "" {
			if err := hostfiles.Lacking(d); err != nil {
				found = append(found, fail(fmt.Sprintf("handler %q cannot run pods: %v", d.Name, err), "install it, or correct "+d.Origin))
			}
			continue
		}
		if m := n.executable(d.Path); d.Path != "" && m != "" {
			found = append(found, fail(fmt.Sprintf("handler %q: %s %s", d.Name, d.Path, m), "install it, or correct runtime_path at "+d.Origin))
		}
		if binary, _ := d.ShimOptions["BinaryName"].(string); binary != "" && n.executable(binary) != "" {
			found = append(found, fail(fmt.Sprintf("handler %q: options.BinaryName %s %s", d.Name, binary, n.executable(binary)), "install it, or correct "+d.Origin))
		}
	}
	if len(n.Config.Runtimes)+len(n.Config.Broken) == 0 && n.ConfigError == nil {
		found = append(found, fail("no handlers configured or discovered", "install a runtime (on Debian: apt-get install crun), or configure [runtimes.<handler>]"))
	}
	return or(found, fmt.Sprintf("all runtime binaries are executable; handlers: %d", len(n.Config.Runtimes)))
}

// daemon checks which process serves the socket.
func daemon(n Node) []Finding {
	socket := n.Config.Server.Socket
	p, found := n.listener(socket)
	switch {
	case !n.isSocket(socket):
		return []Finding{warn("berth is not running: socket "+socket+" does not exist", "systemctl enable --now berth, and if it fails: journalctl -u berth")}
	case !found:
		return []Finding{warn(socket+" is stale: no process listens on it", "systemctl restart berth")}
	case p.name != "berth":
		return []Finding{fail(fmt.Sprintf("%s is served by %s", socket, p), "stop it, or give berth another server.socket")}
	}
	return []Finding{fine(fmt.Sprintf("%s is listening on %s", p, socket))}
}

// capability is a Linux capability that berth needs, by its bit in CapEff; see capabilities(7).
type capability struct {
	bit     int
	name    string
	level   Level
	without string
}

var capabilities = []capability{
	{21, "CAP_SYS_ADMIN", Fail, "namespaces and mounts cannot be created"},
	{12, "CAP_NET_ADMIN", Fail, "pod networks cannot be set up"},
	{1, "CAP_DAC_OVERRIDE", Fail, "files of other users cannot be written"},
	{0, "CAP_CHOWN", Fail, "root file systems cannot be unpacked"},
	{3, "CAP_FOWNER", Fail, "root file systems cannot be unpacked"},
	{6, "CAP_SETGID", Fail, "containers cannot get their users"},
	{7, "CAP_SETUID", Fail, "containers cannot get their users"},
	{5, "CAP_KILL", Fail, "containers of other users cannot be stopped"},
	{27, "CAP_MKNOD", Fail, "layers with device files cannot be unpacked"},
	{24, "CAP_SYS_RESOURCE", Warn, "oom_score_adj and limits cannot exceed berth's own"},
	{19, "CAP_SYS_PTRACE", Warn, "port-forward and statistics of processes of other users may fail"},
}

// privileges checks the capabilities of the daemon, because the operator's shell may have others.
// If no daemon runs, those of this process are checked.
func privileges(n Node) []Finding {
	who, status := "this shell", "/proc/self/status"
	if p, found := n.listener(n.Config.Server.Socket); found && p.name == "berth" {
		who, status = p.String(), "/proc/"+strconv.Itoa(p.pid)+"/status"
	}
	text, err := n.read(status)
	if err != nil {
		return []Finding{warn(fmt.Sprintf("cannot read the privileges of %s: %v", who, err), "run berth doctor as root")}
	}
	effective, err := strconv.ParseUint(field(text, "CapEff:"), 16, 64)
	if err != nil {
		return []Finding{warn(fmt.Sprintf("%s has no CapEff", status), "check that /proc is mounted")}
	}
	var found []Finding
	for _, c := range capabilities {
		if effective&(1<<c.bit) == 0 {
			found = append(found, Finding{
				Level: c.level, Text: fmt.Sprintf("%s lacks %s: %s", who, c.name, c.without),
				Next: "add it to CapabilityBoundingSet= of berth.service, or to the container that berth runs in",
			})
		}
	}
	return or(found, who+" has all capabilities that berth needs")
}

// field returns the rest of the first line that begins with a word.
func field(text, word string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, word); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
