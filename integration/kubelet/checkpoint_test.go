package kubelet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestCheckpoint moves a container with its memory to another pod, as an operator does: the
// kubelet's API writes a checkpoint, which is pushed as an image, and the new pod names the image.
func TestCheckpoint(t *testing.T) {
	criu := testbed.FittingCRIU(t)
	path := t.TempDir()
	testbed.Must(t, os.Symlink(criu, filepath.Join(path, "criu")))
	berth := testbed.StartBed(t, "kubelet/busybox:1", testbed.Options{
		Runtimes:    map[string]string{"runc": testbed.Part(t, testbed.Runc)},
		Config:      "[registry]\ncheckpoint_images = [\"*/kubelet/warm*\"]\n",
		Environment: []string{"PATH=" + path + ":" + os.Getenv("PATH")},
	})
	c := Start(t, Options{Berth: berth.Berth})
	t.Run("moves", func(t *testing.T) { moves(t, berth, c.NewNamespace(t, berth.Image)) })
}

// counter is a pod that counts in memory and serves the count. A container that is not restored
// counts from 1.
const counter = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'mkdir -p /www; httpd -p 8080 -h /www; i=0; until [ -e /www/end ]; do i=$((i+1)); echo $i > /www/next; mv /www/next /www/count; echo line $i; sleep 0.1; done']
    readinessProbe: {httpGet: {path: /count, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 20}
`

func moves(t *testing.T, berth *testbed.Bed, n *Namespace) {
	count := func(pod string) int {
		t.Helper()
		text := n.Exec(t, pod, "sh", "-c", "until [ -s /www/count ]; do sleep 0.01; done; cat /www/count")
		value, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			t.Fatalf("the count of pod %s is %q", pod, text)
		}
		return value
	}
	n.Create(t, strings.ReplaceAll(counter, "NAME", "first"))
	n.WaitReady(t, "first")
	testbed.Eventually(t, patience, func() error {
		if at := count("first"); at < 50 {
			return fmt.Errorf("the count is %d, want 50", at)
		}
		return nil
	})
	at := count("first")
	archive := n.checkpoint(t, "first", "main")
	if now := count("first"); now < at {
		t.Errorf("after its checkpoint the first container has counted to %d, but before it to %d", now, at)
	}
	image := berth.Registry.Push(t, "kubelet/warm:1", testbed.CheckpointImage(t, archive))
	n.Delete(t, "first")

	n.Create(t, strings.NewReplacer("NAME", "second", "IMAGE", image).Replace(counter))
	n.WaitReady(t, "second")
	if now := count("second"); now < at {
		t.Errorf("the restored container has counted to %d, but to %d before the checkpoint", now, at)
	}
	if log := n.Kubectl(t, "logs", "second"); strings.HasPrefix(log, "line 1\n") || !strings.Contains(log, "line ") {
		t.Errorf("the log of the restored container begins %.100q", log)
	}

	// A restart by the kubelet begins from the checkpoint again.
	n.Exec(t, "second", "touch", "/www/end")
	n.WaitRestarts(t, "second", "main", 1)
	n.WaitReady(t, "second")
	if now := count("second"); now < at {
		t.Errorf("after a restart the container has counted to %d, but to %d before the checkpoint", now, at)
	}
	n.Delete(t, "second")
	// An image is allowed if any of its names is, so the allowed name is removed.
	if _, err := berth.Client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
		t.Fatal(err)
	}

	// An image that no pattern allows is not restored, and the pod has an event with the reason.
	other := berth.Registry.Push(t, "kubelet/cold:1", testbed.CheckpointImage(t, archive))
	n.Create(t, strings.NewReplacer("NAME", "third", "IMAGE", other).Replace(counter))
	n.WaitEvent(t, "third", "Failed", "registry.checkpoint_images")
	n.Delete(t, "third")
	if left, _ := filepath.Glob(filepath.Join(berth.Root, "restores", "*")); len(left) > 0 {
		t.Errorf("restore directories are left: %v", left)
	}
}

// checkpoint has the kubelet checkpoint a container, and returns the path of the archive.
func (n *Namespace) checkpoint(t *testing.T, pod, container string) string {
	t.Helper()
	answer := n.Kubectl(t, "create", "--raw", "/api/v1/nodes/"+NodeName+"/proxy/checkpoint/"+n.Name+"/"+pod+"/"+container, "--filename", os.DevNull)
	var made struct {
		Items []string `json:"items"`
	}
	if err := json.Unmarshal([]byte(answer), &made); err != nil || len(made.Items) != 1 {
		t.Fatalf("answer of the kubelet's checkpoint API: %v: %s", err, answer)
	}
	return made.Items[0]
}
