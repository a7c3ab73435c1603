// Package doctor checks a node for reasons why pods do not start: the configuration, the network,
// the kubelet, the kernel, and other CRI daemons. It reads files and connects to registries that
// they name. It runs no program and changes nothing.
//
// A check has a name and a function that returns findings. Each finding above OK has a remedy.
package doctor

import (
	"slices"

	"github.com/berth-cri/berth/pkg/config"
)

// Level is the severity of a finding.
type Level string

const (
	// OK needs no action.
	OK Level = "ok"
	// Warn needs attention, but may be intended.
	Warn Level = "warn"
	// Fail keeps all or some pods from running.
	Fail Level = "fail"
)

// Finding is a result of one check.
type Finding struct {
	// Check is the name of the check.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Text is the result, in one line.
	Text string `json:"text"`
	// Next is the remedy, a command if there is one.
	Next string `json:"next,omitempty"`
}

// Node is the node to check.
type Node struct {
	// Root is prepended to every path that is read; empty means this machine.
	Root string
	// Config is the configuration as the daemon reads it, or the default one if it cannot be read.
	Config *config.Config
	// ConfigError is the error of reading the configuration, or nil.
	ConfigError error
}

type check struct {
	name string
	run  func(Node) []Finding
}

// checks returns all checks in display order: a failure may explain failures of later checks.
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

// Examine runs every check. Each check has at least one finding.
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

// Worst returns the highest level of all findings.
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
