package wasm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

// TestKindsOfImages runs a module from every kind of image. The layers stay in the content store even
// if berth discards unpacked layers.
func TestKindsOfImages(t *testing.T) {
	t.Parallel()
	b, _ := berthBed(t, shims.Wasm{PublishBinary: true}, testbed.Options{Config: "[registry]\ndiscard_unpacked_layers = true\n"}, `platform = "wasi/wasm"`)
	entry := testbed.WasmConfigured(func(c *v1.Config) { c.Entrypoint, c.Cmd = []string{"/app.wasm"}, []string{"exit", "5"} })
	wasip1 := testbed.WasmFor(v1.Platform{OS: "wasip1", Architecture: "wasm"})
	layer := testbed.WasmLayer(t, module(t), entry)
	for name, tc := range map[string]struct {
		image v1.Image
		// ownCommand is whether the pod sets the command, for an image without one.
		ownCommand bool
	}{
		"layer":   {image: layer},
		"counted": {image: testbed.WasmLayer(t, module(t), entry, wasip1, testbed.WasmDiffIDs())},
		"spin":    {image: testbed.WasmLayer(t, module(t), entry, wasip1, testbed.WasmTypes("application/vnd.oci.image.config.v1+json", "application/vnd.wasm.content.layer.v1+wasm"))},
		"cncf":    {image: testbed.WasmLayer(t, module(t), wasip1, testbed.WasmTypes("application/vnd.wasm.config.v0+json", "application/wasm")), ownCommand: true},
		"file":    {image: testbed.WasmFile(t, module(t), wasip1, entry)},
	} {
		t.Run(name, func(t *testing.T) {
			reference, id := b.push(t, "kinds/"+name+":1", tc.image)
			spec := testbed.PodSpec{Image: id}
			if tc.ownCommand {
				spec.Command = []string{"/", "exit", "5"}
			}
			if ended, said := b.run(t, spec); ended.GetExitCode() != 5 {
				t.Errorf("the module exited with %d, want 5, and wrote %q", ended.GetExitCode(), said)
			}
			b.Restart(t)
			if got := b.image(t, "", reference).GetId(); got != id {
				t.Errorf("after a restart %s is image %q", reference, got)
			}
			layers, err := tc.image.Layers()
			testbed.Must(t, err)
			if hash, err := layers[0].Digest(); err != nil || !b.has(t, hash) {
				t.Errorf("the layer %v of the image is gone: %v", hash, err)
			}
			b.remove(t, id)
		})
	}
}

// TestPinnedModule runs a pod that names an image by digest. The shim must get that reference, and
// not the tag of the same image, which is an index that the shim cannot read.
func TestPinnedModule(t *testing.T) {
	t.Parallel()
	b, _ := berthBed(t, shims.Wasm{}, testbed.Options{}, `platform = "wasi/wasm"`)
	wasm := testbed.WasmLayer(t, module(t), testbed.WasmConfigured(func(c *v1.Config) { c.Entrypoint, c.Cmd = []string{"/app.wasm"}, []string{"exit", "8"} }))
	tagged := b.registry.PushIndex(t, "pinned/app:1", testbed.Index(t, testbed.Busybox(t), wasm))
	hash, err := wasm.Digest()
	testbed.Must(t, err)
	pinned := strings.TrimSuffix(tagged, ":1") + "@" + hash.String()
	id := b.Client.Pull(t, handler, tagged)
	if got := b.Client.Pull(t, handler, pinned); got != id {
		t.Fatalf("%s is image %s, but %s is %s", tagged, id, pinned, got)
	}
	ended, said := b.run(t, testbed.PodSpec{Image: id, Container: func(c *runtimeapi.ContainerConfig) { c.Image.UserSpecifiedImage = pinned }})
	if ended.GetExitCode() != 8 || ended.GetImage().GetImage() != pinned {
		t.Errorf("the module exited with %d as %s, want 8 as the digest, and wrote %q", ended.GetExitCode(), ended.GetImage().GetImage(), said)
	}
}

// TestShimWithoutPlatform runs a module and a Linux program under a handler without the key platform,
// as installers write it. berth knows this shim, and accepts both kinds of images.
func TestShimWithoutPlatform(t *testing.T) {
	t.Parallel()
	b, _ := berthBed(t, shims.Wasm{}, testbed.Options{}, "")
	wasm, _ := b.push(t, "mixed/wasm:1", testbed.WasmLayer(t, module(t), testbed.WasmConfigured(func(c *v1.Config) { c.Cmd = []string{"/", "exit", "8"} })))
	linux, _ := b.push(t, "mixed/linux:1", testbed.Busybox(t))
	pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
	if got := pod.RunContainer(t, "module", testbed.PodSpec{Image: wasm}).WaitExit(t).GetExitCode(); got != 8 {
		t.Errorf("the module exited with %d, want 8", got)
	}
	if got := pod.RunContainer(t, "program", testbed.PodSpec{Image: linux, Command: []string{"sh", "-c", "exit 9"}}).WaitExit(t).GetExitCode(); got != 9 {
		t.Errorf("the program exited with %d, want 9", got)
	}
}

// TestWhatIsKnownOfTheShim checks the capabilities of the shim, and that it conforms to wasm/v1.
func TestWhatIsKnownOfTheShim(t *testing.T) {
	t.Parallel()
	_, berth := berthBed(t, shims.Wasm{}, testbed.Options{}, "platform = \"wasi/wasm\"\nconforms = [\"wasm/v1\"]")
	// The capabilities may be unknown before a self-check pod has run.
	shown(t, berth, "handler", "probe", handler, "--self-check")
	text := shown(t, berth, "capabilities", handler)
	for _, want := range []string{"shared-kernel", "host-network", "wasm/v1"} {
		if !strings.Contains(text, want) {
			t.Errorf("the capabilities of the shim lack %q:\n%s", want, text)
		}
	}
}

// TestNothingIsLeft checks that removed pods of modules leave nothing in berth's directories.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	b, berth := berthBed(t, shims.Wasm{}, testbed.Options{}, `platform = "wasi/wasm"`)
	reference, _ := b.push(t, "rest/app:1", testbed.WasmLayer(t, module(t), testbed.WasmConfigured(func(c *v1.Config) { c.Cmd = []string{"/", "exit", "0"} })))
	b.run(t, testbed.PodSpec{Image: reference})
	berth.Restart(t)
	before := berth.Snapshot(t)
	for range 3 {
		b.run(t, testbed.PodSpec{Image: reference})
	}
	pod := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: reference, Args: []string{"/", "stay"}})
	says(t, pod.Container, "staying")
	pod.Remove(t)
	berth.Restart(t)
	berth.NoLeaks(t, before)
}

// shown returns the output of a command of berth.
func shown(t *testing.T, b *testbed.Berth, args ...string) string {
	t.Helper()
	command := exec.CommandContext(testbed.Within(t, patience), filepath.Join(b.Bin, "berth"), args...)
	command.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	var out, mistakes strings.Builder
	command.Stdout, command.Stderr = &out, &mistakes
	if err := command.Run(); err != nil {
		t.Fatalf("berth %v: %v\n%s%s", args, err, out.String(), mistakes.String())
	}
	return out.String()
}
