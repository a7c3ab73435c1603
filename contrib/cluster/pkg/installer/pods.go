package installer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/nodefs"
)

// recordsOfPods contains one entry for each pod of berth's own engine.
const recordsOfPods = "/var/lib/berth/records/sandboxes"

type enginePod struct {
	// name is the pod's namespace and name, or the name of a record that cannot be read.
	name string
	// handler is the pod's handler, path the path of its runtime, both as of the pod's creation.
	handler, path string
}

// enginePods reads the pods from their records, which needs no running daemon.
func enginePods(root nodefs.Root) ([]enginePod, error) {
	entries, err := os.ReadDir(root.Path(recordsOfPods))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var pods []enginePod
	for _, e := range entries {
		p := enginePod{name: e.Name()}
		var spec struct {
			Definition struct{ Name, Path string }
			Config     []byte
		}
		var config runtimeapi.PodSandboxConfig
		text, err := os.ReadFile(root.Path(filepath.Join(recordsOfPods, e.Name(), "spec.json")))
		if err == nil && json.Unmarshal(text, &spec) == nil {
			p.handler, p.path = spec.Definition.Name, spec.Definition.Path
			if proto.Unmarshal(spec.Config, &config) == nil && config.GetMetadata() != nil {
				p.name = config.GetMetadata().GetNamespace() + "/" + config.GetMetadata().GetName()
			}
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// noPods returns an error if berth's own engine has pods.
func noPods(root nodefs.Root) error {
	pods, err := enginePods(root)
	if err != nil || len(pods) == 0 {
		return err
	}
	return fmt.Errorf("berth's own engine has %s: delete them, or drain their handlers; %w", counted(pods), ErrPods)
}

// counted formats the number and the names of pods.
func counted(pods []enginePod) string {
	names := make([]string, len(pods))
	for n, p := range pods {
		names[n] = p.name
	}
	slices.Sort(names)
	if len(names) == 1 {
		return "1 pod (" + names[0] + ")"
	}
	return fmt.Sprintf("%d pods (%s)", len(names), strings.Join(names, ", "))
}

var (
	// ErrPods means that pods block a removal.
	ErrPods = errors.New("try again when these pods are gone")
	// ErrFinal is an error of a Cluster that a retry does not change.
	ErrFinal = errors.New("a retry does not help")
)
