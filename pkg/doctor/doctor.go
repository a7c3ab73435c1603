// Package doctor looks at a node as an operator would who wonders why pods do not
// start: the configuration, the network, the kubelet, the kernel, and who else is
// there. It reads files and connects to registries that they name. It runs nothing and
// changes nothing.
//
// A check is a name and a function from what the node is to findings. Each
// finding that is no OK says what to do next.
package doctor

import (
	"slices"

	"github.com/berth-cri/berth/pkg/config"
)

// Level says how bad a finding is.
type Level string

const (
	// OK needs nothing.
	OK Level = "ok"
	// Warn works now, and may not be what was meant.
	Warn Level = "warn"
	// Fail keeps pods, or some of them, from running.
	Fail Level = "fail"
)

// Finding is what one check has to say.
type Finding struct {
	// Check is the name of the check.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Text is what was found, in one line.
	Text string `json:"text"`
	// Next is what to do about it, a command where there is one.
	Next string `json:"next,omitempty"`
}

// Node is what is looked at.
type Node struct {
	// Root is put before every path that is read; empty is this machine.
	Root string
	// Config is the configuration as the daemon reads it, or the default one if
	// it cannot be read.
	Config *config.Config
	// ConfigError says why the configuration cannot be read, or is nil.
	ConfigError error
}

// check looks at one concern.
type check struct {
	name string
	run  func(Node) []Finding
}

// checks are in the order in which an operator wants to read them: what is
// broken first breaks what comes after it.
func checks() []check {
	return []check{
		{"config", configuration},
		{"handlers", handlers},
		{"daemon", daemon},
		{"privileges", privileges},
		{"kernel", kernel},
		{"cgroup-driver", cgroupDriver},
		{"noexec", noexec},
		{"disk", disk},
		{"sysctls", sysctls},
		{"inotify", inotify},
		{"cni", cni},
		{"registries", registries},
		{"nri", nriSocket},
		{"containerd-api", agentsSocket},
		{"ports", ports},
		{"kubelet", kubelet},
		{"kubelet-restart", kubeletRestart},
		{"kubeadm", kubeadm},
		{"crictl", crictl},
		{"other-runtimes", otherRuntimes},
	}
}

// Examine runs every check. Each has at least one finding.
func Examine(n Node) []Finding {
	if n.Config == nil {
		n.Config = config.Default()
	}
	var all []Finding
	for _, c := range checks() {
		found := c.run(n)
		for i := range found {
			found[i].Check = c.name
		}
		all = append(all, found...)
	}
	return all
}

// Worst is the worst level of all findings.
func Worst(all []Finding) Level {
	for _, level := range []Level{Fail, Warn} {
		if slices.ContainsFunc(all, func(f Finding) bool { return f.Level == level }) {
			return level
		}
	}
	return OK
}

func fine(text string) Finding       { return Finding{Level: OK, Text: text} }
func warn(text, next string) Finding { return Finding{Level: Warn, Text: text, Next: next} }
func fail(text, next string) Finding { return Finding{Level: Fail, Text: text, Next: next} }

func or(found []Finding, well string) []Finding {
	if len(found) == 0 {
		return []Finding{fine(well)}
	}
	return found
}
