// Package bundle reads the parts of an OCI bundle that a supervisor needs.
package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Facts holds the fields of a bundle's config.json that a supervisor uses.
type Facts struct {
	Annotations map[string]string `json:"annotations"`
	Process     struct {
		OOMScoreAdj *int `json:"oomScoreAdj"`
	} `json:"process"`
	Linux struct {
		CgroupsPath string `json:"cgroupsPath"`
		Namespaces  []struct {
			Type string `json:"type"`
			Path string `json:"path"`
		} `json:"namespaces"`
	} `json:"linux"`
}

// Read ignores errors; the runtime refuses a bundle without a readable spec.
func Read(bundle string) Facts {
	var f Facts
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil {
		_ = json.Unmarshal(b, &f)
	}
	return f
}

// IsMember reports whether the container joins the sandbox of another container, by the annotations
// of containerd and CRI-O that runsc follows.
func (f Facts) IsMember() bool {
	return f.Annotations["io.kubernetes.cri.container-type"] == "container" ||
		f.Annotations["io.kubernetes.cri-o.ContainerType"] == "container"
}

// Sandbox returns the id of the first container in the sandbox of container id: id itself, unless
// the container is a member of another's sandbox.
func (f Facts) Sandbox(id string) string {
	if f.IsMember() {
		for _, key := range []string{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"} {
			if sandbox := f.Annotations[key]; sandbox != "" {
				return sandbox
			}
		}
	}
	return id
}
