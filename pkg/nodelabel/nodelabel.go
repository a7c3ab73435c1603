// Package nodelabel has the labels by which a cluster sees what handlers a node
// has. Node Feature Discovery puts them on nodes from a file that says them in
// full, and RuntimeClasses select nodes by them and count pods by a resource; all have
// the names from here.
package nodelabel

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Prefix is the namespace of labels that Node Feature Discovery may always set.
const Prefix = "feature.node.kubernetes.io/"

// Ready is the value of the label of a handler that takes pods. Others do not have it.
const Ready = "ready"

const (
	handlerPrefix = "handler."
	// longest is what Kubernetes allows for the part of a label's name behind the slash.
	longest = 63
	// hashed is how much of a hash tells shortened names apart.
	hashed = 8
)

// True is the value of labels that are there or not.
const True = "true"

// Present is the label of a handler that a node has, or has pods of. It does not go when
// the handler takes no pods: a kubelet that starts then ends pods which select it.
func Present(name string) string { return About(name, "present") }

// MaxPods is the label that says how many pods a handler takes, if that is bounded.
func MaxPods(name string) string { return About(name, "max-pods") }

// Default is the label of the handler that pods without a class get, while it takes pods.
func Default(name string) string { return About(name, "default") }

// Pods is the resource that each pod of a handler has one of. It has Prefix, because
// what is not below kubernetes.io is set to zero by a kubelet that takes its node for a
// new one, and then its pods do not fit.
func Pods(name string) string { return About(name, pods) }

const pods = "pods"

// IsPods says whether a resource is the Pods of some handler.
func IsPods(resource string) bool {
	name, ours := strings.CutPrefix(resource, Prefix+handlerPrefix)
	return ours && strings.HasSuffix(name, "."+pods)
}

// IsAbout says whether a label is that of a handler, or about it.
func IsAbout(key, handler string) bool {
	return key == Handler(handler) || key == About(handler, key[strings.LastIndexByte(key, '.')+1:])
}

// IsOfHandler says whether a label is about a handler.
func IsOfHandler(key string) bool { return strings.HasPrefix(key, Prefix+handlerPrefix) }

// Handler is the label of a handler that takes pods. A name that is too long for one, as those of
// more than 55 characters are, is cut, and its hash put behind it.
func Handler(name string) string { return of(name, "") }

// About is the label of one thing about a handler, which is a DNS label itself. The
// handler's name is cut as in Handler, and earlier, for the thing's name comes behind it.
func About(name, what string) string { return of(name, "."+what) }

func of(name, suffix string) string {
	if room := longest - len(handlerPrefix) - len(suffix); len(name) > room {
		sum := sha256.Sum256([]byte(name))
		name = name[:room-hashed-1] + "-" + hex.EncodeToString(sum[:])[:hashed]
	}
	return Prefix + handlerPrefix + name + suffix
}
