// Package nodelabel defines the labels that show a node's handlers to the cluster. Node Feature
// Discovery reads them from a file and sets them. RuntimeClasses select nodes by the labels and
// count pods by a resource.
package nodelabel

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Prefix is the namespace of labels that Node Feature Discovery may always set.
const Prefix = "feature.node.kubernetes.io/"

// Ready is the label value of a handler that takes pods. Other handlers lack the label.
const Ready = "ready"

const (
	handlerPrefix = "handler."
	// longest is the limit of Kubernetes for a label's name after the slash.
	longest = 63
	// hashed is the length of the hash that distinguishes shortened names.
	hashed = 8
)

// True is the value of labels that are either set or absent.
const True = "true"

// Present is the label of a handler that is configured or has pods. It stays while the handler
// takes no pods, because a restarted kubelet ends pods if their selector no longer matches.
func Present(name string) string { return About(name, "present") }

// MaxPods is the label with the largest number of pods that a handler takes, if that is limited.
func MaxPods(name string) string { return About(name, "max-pods") }

// Default is the label of the handler that pods without a class get, while it takes pods.
func Default(name string) string { return About(name, "default") }

// Pods is the resource of which each pod of a handler requests one. It has Prefix: if a node seems
// new, its kubelet sets resources outside kubernetes.io to zero, and the node's pods do not fit.
func Pods(name string) string { return About(name, pods) }

const pods = "pods"

// IsPods reports whether a resource is Pods of some handler.
func IsPods(resource string) bool {
	name, ours := strings.CutPrefix(resource, Prefix+handlerPrefix)
	return ours && strings.HasSuffix(name, "."+pods)
}

// IsAbout reports whether a label belongs to this handler.
func IsAbout(key, handler string) bool {
	return key == Handler(handler) || key == About(handler, key[strings.LastIndexByte(key, '.')+1:])
}

// IsOfHandler reports whether a label belongs to any handler.
func IsOfHandler(key string) bool { return strings.HasPrefix(key, Prefix+handlerPrefix) }

// Handler is the label of a handler that takes pods. A name that is too long for a label, with more
// than 55 characters, is cut and gets a hash as its suffix.
func Handler(name string) string { return of(name, "") }

// About is the label of a handler's property, named by the DNS label what. The handler's name is
// cut as in Handler, to a length that leaves room for the property's name.
func About(name, what string) string { return of(name, "."+what) }

func of(name, suffix string) string {
	if room := longest - len(handlerPrefix) - len(suffix); len(name) > room {
		sum := sha256.Sum256([]byte(name))
		name = name[:room-hashed-1] + "-" + hex.EncodeToString(sum[:])[:hashed]
	}
	return Prefix + handlerPrefix + name + suffix
}
