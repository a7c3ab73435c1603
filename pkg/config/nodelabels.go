package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// minLabelsLifetime leaves time to write again what could not be written at once.
const minLabelsLifetime = 10 * time.Second

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
