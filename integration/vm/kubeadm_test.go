package vm

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// TestKubeadm creates and removes a cluster by kubeadm on the packaged berth. The images have the
// names that kubeadm expects, and contain programs that the tests have built. The node has no
// registry; it gets the images by "berth image import".
func TestKubeadm(t *testing.T) {
	m := machine.Start(t, machine.Options{Memory: 6144})
	for _, part := range []string{testbed.Kubeadm, testbed.Kubelet, testbed.Kubectl} {
		m.Put(t, testbed.Part(t, part), "/usr/bin/"+part)
	}
	m.Put(t, imagesOfKubeadm(t), place+"/images.tar")
	packaged(t, m, repository(t), "TestKubeadm")
}

// TestDaemonSet has the installer's DaemonSet move its own kubelet from containerd to berth and back,
// in a kubeadm cluster.
func TestDaemonSet(t *testing.T) {
	m := machine.Start(t, machine.Options{Memory: 6144})
	for _, part := range []string{testbed.Kubeadm, testbed.Kubelet, testbed.Kubectl} {
		m.Put(t, testbed.Part(t, part), "/usr/bin/"+part)
	}
	for _, part := range []string{testbed.Containerd, testbed.Ctr, testbed.RuncShim, testbed.Runc, testbed.Runsc} {
		bringPart(t, m, part)
	}
	m.Put(t, imagesOfKubeadm(t), place+"/images.tar")
	m.Put(t, imageOfBerth(t), place+"/berth.tar")
	manifests, err := os.ReadFile(filepath.Join(repository(t), "contrib/kubernetes/berth-installer.yaml"))
	testbed.Must(t, err)
	text := shippedImage.ReplaceAllString(string(manifests), "image: "+imageName)
	// As the chart writes the values `config` and `runtimes`.
	for empty, value := range map[string]string{
		`"config": ""`:   `"config": "[registry]\nhosts_dir = \"/etc/containerd/certs.d\""`,
		`"runtimes": []`: `"runtimes": [{"handler": "gvisor", "kind": "runsc", "version": "1", "source": "/host` + place + `/runsc"}, {"handler": "crun", "kind": "crun", "version": "1", "source": "/host/usr/bin/crun"}]`,
	} {
		if strings.Count(text, empty) != 1 {
			t.Fatalf("the manifests do not have %s exactly once", empty)
		}
		text = strings.Replace(text, empty, value, 1)
	}
	m.Write(t, place+"/berth-installer.yaml", text)
	within(t, m, "TestDaemonSet")
}

// imageName is the name of the installer's image in the machine.
const imageName = "registry.test/berth:1.0.0"

var shippedImage = regexp.MustCompile(`image: \S+/berth:\S+`)

// imageOfBerth returns the archive that "make image" builds.
func imageOfBerth(t *testing.T) string {
	t.Helper()
	out := t.TempDir()
	c := exec.CommandContext(t.Context(), "make", "--no-print-directory", "image", "PLATFORMS=amd64", "VERSION=1.0.0", "OUT="+out, "IMAGE="+imageName)
	c.Dir = repository(t)
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("make image: %v\n%s", err, text)
	}
	return filepath.Join(out, "berth_1.0.0_image.tar")
}

// imagesOfKubeadm returns an archive with all images of a control plane.
func imagesOfKubeadm(t *testing.T) string {
	t.Helper()
	kubeadm := testbed.Part(t, testbed.Kubeadm)
	said := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), kubeadm, args...).Output()
		testbed.Mustf(t, err, "kubeadm %v", args)
		return strings.TrimSpace(string(out))
	}
	// With a version, kubeadm does not look one up in the network.
	names := strings.Fields(said("config", "images", "list", "--kubernetes-version="+said("version", "--output=short")))
	images := map[name.Tag]v1.Image{}
	for _, image := range names {
		tag, err := name.NewTag(image)
		testbed.Must(t, err)
		program := path.Base(tag.RepositoryStr())
		files := map[string]string{}
		config := v1.Config{Env: []string{"PATH=/usr/local/bin:/usr/sbin"}}
		switch program {
		case "pause":
			files["/pause"] = filepath.Join(testbed.Built(t), "berth-pause")
			config.Entrypoint = []string{"/pause"}
		case "coredns":
			files["/coredns"] = testbed.Part(t, testbed.CoreDNS)
			config.Entrypoint = []string{"/coredns"}
		case "kube-proxy":
			files = iptables(t)
			fallthrough
		default:
			files["/usr/local/bin/"+program] = testbed.Part(t, program)
		}
		images[tag] = imageOf(t, config, files)
	}
	file := filepath.Join(t.TempDir(), "images.tar")
	testbed.Must(t, tarball.MultiWriteToFile(file, images))
	return file
}

// imageOf returns an image with files of the host; the keys of files are their paths in the image.
func imageOf(t *testing.T, config v1.Config, files map[string]string) v1.Image {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for to, from := range files {
		text, err := os.ReadFile(from)
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(to, "/"), Mode: 0o755, Size: int64(len(text))})
		}
		if err == nil {
			_, err = w.Write(text)
		}
		testbed.Mustf(t, err, "put %s into an image", from)
	}
	testbed.Must(t, w.Close())
	// Without compression, because decompressing takes long on an emulated processor.
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }, tarball.WithCompression(compression.None))
	testbed.Must(t, err)
	image, err := mutate.AppendLayers(empty.Image, l)
	testbed.Must(t, err)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: config, RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(t, l)}})
	testbed.Must(t, err)
	return image
}

func diffIDs(t *testing.T, l v1.Layer) []v1.Hash {
	t.Helper()
	id, err := l.DiffID()
	testbed.Must(t, err)
	return []v1.Hash{id}
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// iptables returns the files of Debian's iptables, which kube-proxy calls, by their paths.
func iptables(t *testing.T) map[string]string {
	t.Helper()
	const program = "/usr/sbin/xtables-nft-multi"
	files := map[string]string{}
	for _, called := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		files["/usr/sbin/"+called] = program
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil || len(extensions) == 0 {
		testbed.Missing(t, "Debian's iptables is missing: run `make deps` (%v)", err)
	}
	for _, file := range extensions {
		files[file] = file
	}
	// The extensions need more libraries than the program.
	out, err := exec.CommandContext(t.Context(), "ldd", append(extensions, program)...).Output()
	testbed.Mustf(t, err, "find the libraries of iptables")
	for _, l := range library.FindAllStringSubmatch(string(out), -1) {
		files[l[1]] = l[1]
	}
	return files
}
