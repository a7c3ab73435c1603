// Package sysctl decides which sysctls a pod can set: those of namespaces that it does not share
// with the node.
package sysctl

import (
	"slices"
	"strings"
)

// Namespace is a type of namespace with its own sysctls.
type Namespace string

// Namespaces of a pod's sysctls. None is for the sysctls of the whole node.
const (
	Network Namespace = "network"
	IPC     Namespace = "ipc"
	UTS     Namespace = "uts"
	None    Namespace = ""
)

// Key is the path below /proc/sys of a dotted or slashed name, or "" if the name does not lead to a
// path there. The first separator determines which of the two is the separator; the other may then
// occur inside an element, such as the name of an interface (net/ipv4/conf/eth0.100/forwarding), as
// in sysctl(8).
func Key(name string) string {
	key := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '.' {
		key = strings.Map(func(c rune) rune {
			switch c {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return c
		}, name)
	}
	outside := func(element string) bool { return element == "" || element == "." || element == ".." }
	if strings.ContainsRune(key, 0) || slices.ContainsFunc(strings.Split(key, "/"), outside) {
		return ""
	}
	return key
}

// NamespaceOf returns the namespace of a sysctl, by the kernel's rule. It is Network for all of
// net, IPC for limits of System V IPC and POSIX queues, and UTS for names of the node.
func NamespaceOf(name string) Namespace {
	key := Key(name)
	switch {
	case strings.HasPrefix(key, "net/"):
		return Network
	case strings.HasPrefix(key, "fs/mqueue/"), slices.Contains(ipcKeys, key):
		return IPC
	case key == hostname, key == "kernel/domainname":
		return UTS
	}
	return None
}

// ipcKeys are listed in ipc_namespaces(7) and in ipc/ipc_sysctl.c of the kernel.
var ipcKeys = []string{
	"kernel/auto_msgmni",
	"kernel/msg_next_id",
	"kernel/msgmax",
	"kernel/msgmnb",
	"kernel/msgmni",
	"kernel/sem",
	"kernel/sem_next_id",
	"kernel/shm_next_id",
	"kernel/shm_rmid_forced",
	"kernel/shmall",
	"kernel/shmmax",
	"kernel/shmmni",
}

const hostname = "kernel/hostname"

// Refusal is the reason why a pod cannot set a sysctl, "" if it can. own reports whether the pod
// has its own namespace of a type.
func Refusal(name string, own func(Namespace) bool) string {
	ns := NamespaceOf(name)
	switch {
	case Key(name) == "":
		return "is not the name of a sysctl; write it as net.ipv4.ip_forward"
	case Key(name) == hostname:
		return "is set by the hostname of the pod; use that"
	case ns == None:
		return "belongs to the whole node; set it on the node"
	case !own(ns):
		return "belongs to the " + string(ns) + " namespace, which the pod shares with the node; remove it, or use a separate namespace for the pod"
	}
	return ""
}
