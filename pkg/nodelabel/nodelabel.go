// Package nodelabel has the labels by which a cluster sees what handlers a node
// has. Node Feature Discovery puts them on nodes from a file that says them in
// full, and RuntimeClasses select nodes by them; both have the names from here.
package nodelabel

import (
	"crypto/sha256"
	"encoding/hex"
)

// Prefix is the namespace of labels that Node Feature Discovery may always set.
const Prefix = "feature.node.kubernetes.io/"

// Ready is the value of the label of a handler that takes pods. Others have no label.
const Ready = "ready"

const (
	handlerPrefix = "handler."
	// longest is what Kubernetes allows for the part of a label's name behind the slash.
	longest = 63
	// hashed is how much of a hash tells shortened names apart.
	hashed = 8
)

// Handler is the label of a handler. A name that is too long for one, as those of
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
