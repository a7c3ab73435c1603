package kubelet

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// staticPod runs a pod from a file in the kubelet's directory of static pods.
func (b *bed) staticPod(t *testing.T, n *Namespace) {
	const name = "from-a-file"
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, command: [sleep, "3600"]}]
`, name, n.Name, b.berth.Image)
	file := filepath.Join(b.node.static, "pod.yaml")
	testbed.Must(t, os.WriteFile(file, []byte(manifest), 0o600))
	pod := n.WaitReady(t, name+"-"+NodeName)
	if pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
		t.Errorf("the pod has no annotation of a mirror pod: %v", pod.Annotations)
	}
	b.classes[0].ran(t, running(n, pod))
	testbed.Must(t, os.Remove(file))
	testbed.Eventually(t, patience, func() error {
		if _, err := n.TryPod(pod.Name); err == nil {
			return fmt.Errorf("pod %s is still there", pod.Name)
		}
		return nil
	})
}

// logRotation writes more than the kubelet's limit for a log file, and checks that no line is lost
// when the kubelet rotates the file.
func (b *bed) logRotation(t *testing.T, n *Namespace) {
	const lines = 12000 // of 100 bytes; the limit of a log file is a quarter of their sum
	for _, class := range b.classes {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'i=0; while [ $i -lt %[2]d ]; do printf "%%06d %%093d\n" $i 0; i=$((i+1)); [ $((i %% 1000)) != 0 ] || sleep 1; done; echo that was all; sleep 3600']
`, class.name, lines))
	}
	for _, class := range b.classes {
		pod := n.WaitReady(t, class.name)
		dir := filepath.Join(b.Logs, n.Name+"_"+class.name+"_"+string(pod.UID), "main")
		// "kubectl logs --follow" cannot show that no line is lost: the kubelet may leave out
		// lines when it rotates the file.
		files, seen := written(t, dir, "that was all")
		if len(files) < 2 {
			t.Errorf("%s: the log was never rotated: %v", class.name, files)
		}
		if seen != lines {
			t.Errorf("%s: wrote %d lines, found %d in the logs %v", class.name, lines, seen, files)
		}
	}
}

// written waits for the last line of a container in its log or a rotated file. It returns the names
// of these files and the number of lines that begin with a zero. The kubelet rotates and compresses
// files meanwhile.
func written(t *testing.T, dir, last string) (files []string, seen int) {
	t.Helper()
	testbed.Eventually(t, 2*patience, func() (err error) {
		if files, err = filepath.Glob(dir + "/*"); err != nil {
			return err
		}
		seen = 0
		ended := false
		for _, file := range files {
			if strings.HasSuffix(file, ".tmp") {
				return fmt.Errorf("%s is being written", file)
			}
			body, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if strings.HasSuffix(file, ".gz") {
				body = gunzip(t, body)
			}
			entries, err := testbed.ParseLog(body)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			for _, entry := range entries {
				ended = ended || entry.Text == last
				if strings.HasPrefix(entry.Text, "0") {
					seen++
				}
			}
		}
		if !ended {
			return fmt.Errorf("%v do not have the line %q", files, last)
		}
		return nil
	})
	return files, seen
}

func gunzip(t *testing.T, body []byte) []byte {
	t.Helper()
	reader, err := gzip.NewReader(bytes.NewReader(body))
	testbed.Must(t, err)
	plain, err := io.ReadAll(reader)
	testbed.Must(t, err)
	return plain
}
