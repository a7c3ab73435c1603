package validate

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestID(t *testing.T) {
	for _, id := range []string{"0", strings.Repeat("a1", 32), "pod-1_x.y", "ABC", strings.Repeat("a", maxName)} {
		test.Checkf(t, checkID("container_id", id), "%q", id)
	}
	for _, id := range []string{"", ".", "..", "-x", "_x", "a/b", "../x", "a b", "a\x00", "é", "a\n", strings.Repeat("a", maxName+1), long} {
		checkRefused(t, checkID("container_id", id), "container_id")
	}
}

func TestImageRef(t *testing.T) {
	hex := strings.Repeat("a", 64)
	for ref, ok := range map[string]struct{ present, pull bool }{
		"busybox":                         {true, true},
		"busybox:1.36":                    {true, true},
		"registry.test:5000/a/b:v1":       {true, true},
		"registry.test/a@sha256:" + hex:   {true, true},
		"registry.test/a:1@sha256:" + hex: {true, true},
		"[::1]:5000/a":                    {true, true},
		"localhost/a":                     {true, true},
		"sha256:" + hex:                   {true, true}, // in a pull, this is a tag of the repository sha256
		hex:                               {true, false},
		hex[:12]:                          {true, true},
		"":                                {},
		"A":                               {},
		"a:":                              {},
		"a b":                             {},
		"a@sha256:1":                      {},
		"http://registry.test/a":          {},
		"registry.test/A":                 {},
		"../a":                            {},
		"a\nb":                            {},
		strings.Repeat("a", 256):          {},
		long:                              {},
	} {
		for name, tc := range map[string]struct {
			err error
			ok  bool
		}{
			"present": {checkImageRef(ref), ok.present},
			"pull":    {PullImage(&runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}), ok.pull},
		} {
			switch {
			case tc.ok && tc.err != nil:
				t.Errorf("%s %.80q: %v", name, ref, tc.err)
			case !tc.ok && tc.err == nil:
				t.Errorf("%s %.80q is accepted", name, ref)
			case !tc.ok:
				checkRefused(t, tc.err, "image")
			}
		}
	}
}

// The error for an unknown value lists the known values, but cuts off a long
// list.
func TestUnknownValueListsTheKnown(t *testing.T) {
	req := sandboxRequest()
	req.Config.PortMappings[0].Protocol = 42
	test.Says(t, RunPodSandbox(req), "TCP, UDP, SCTP")
	c := containerRequest()
	c.Config.StopSignal = -1
	test.Says(t, CreateContainer(c, nil), ", …")
}

// For any input, the result is nil or an error of the promised class, length and characters.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a", "../..", "a\x00b", "/x", "0-3,8", "sha256:ff", "localhost/x", "\xff\xfe", "net.ipv4/x", long} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sandbox, container := sandboxRequest(), containerRequest()
		sandbox.Config.Metadata.Name, sandbox.Config.Linux.Sysctls = s, map[string]string{s: s}
		sandbox.Config.DnsConfig.Options, sandbox.Config.Linux.CgroupParent = []string{s}, s
		container.Config.Mounts[0].ContainerPath, container.Config.LogPath = s, s
		other := sandboxRequest()
		other.Config.Linux.Sysctls = map[string]string{s: s}
		for _, err := range []error{
			RunPodSandbox(sandbox), RunPodSandbox(other), CreateContainer(container, nil), checkID("id", s), checkImageRef(s), cpuList("list", s),
			unified("unified", map[string]string{s: s}), oldProfile("profile", s, requiredPath), capability("capability", s),
		} {
			if err == nil {
				continue
			}
			if !errors.Is(err, errdefs.ErrInvalidArgument) || len(err.Error()) > 1024 || strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("%q", err)
			}
		}
		if checkID("id", s) == nil && (s == ".." || strings.ContainsAny(s, "/\x00\n")) {
			t.Errorf("%q is accepted as an ID", s)
		}
	})
}
