// Package bundle reads from an OCI bundle the few facts that a supervisor needs.
package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Facts is what matters here of a bundle's config.json.
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

// Read reads what it can; a bundle without a readable spec is the
// runtime's to refuse.
func Read(bundle string) Facts {
	var f Facts
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil {
		_ = json.Unmarshal(b, &f)
	}
	return f
}

// IsMember reports whether the container joins the sandbox of another one, by the
// annotations of containerd and CRI-O that runsc follows.
func (f Facts) IsMember() bool {
	return f.Annotations["io.kubernetes.cri.container-type"] == "container" ||
		f.Annotations["io.kubernetes.cri-o.ContainerType"] == "container"
}

// Sandbox is the container whose sandbox a container runs in: itself, if it joins
// none.
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
