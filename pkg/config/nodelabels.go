package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// minLabelsLifetime leaves time to write again what could not be written at once.
const minLabelsLifetime = 10 * time.Second

// NodeLabels is the file from which Node Feature Discovery labels the node.
type NodeLabels struct {
	// File is written if its directory exists; empty is never.
	File string `toml:"file"`
	// Lifetime is how long a cluster keeps the labels of a daemon that is gone.
	Lifetime time.Duration `toml:"lifetime"`
}

func (v *validator) nodeLabels(n *NodeLabels) {
	if n.File != "" {
		v.absolute("node_labels.file", n.File)
		switch name := filepath.Base(n.File); {
		case strings.HasSuffix(n.File, "/"):
			v.wrong("node_labels.file", fmt.Sprintf("%q is a directory; it must be the path of a file", n.File), n.File+"berth")
		case strings.HasPrefix(name, "."):
			v.wrong("node_labels.file", fmt.Sprintf("Node Feature Discovery does not read %q, because its name begins with a dot", name), "")
		}
	}
	if n.Lifetime < minLabelsLifetime {
		v.wrong("node_labels.lifetime", `must be "10s" or more`, "")
	}
}
