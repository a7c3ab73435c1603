package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// verifierProgram puts a shell script into dir as an image verifier.
func verifierProgram(t *testing.T, dir, name, script string) {
	t.Helper()
	test.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
}

func verifiers(dir string) pull.Verifiers {
	return pull.Verifiers{BinDir: dir, Timeout: 10 * time.Second}
}

// wantRefused checks that an error has the reason that the kubelet expects, and the texts.
func wantRefused(t *testing.T, err error, says ...string) {
	t.Helper()
	if !errdefs.IsUnknown(err) || !strings.HasPrefix(err.Error(), "SignatureValidationFailed") || len(err.Error()) > 1024 {
		t.Fatalf("the error is %v of class %v, want a short SignatureValidationFailed", err, errdefs.Resolve(err))
	}
	test.Says(t, err, says...)
}

func TestVerifierIsToldWhatIsPulled(t *testing.T) {
	reg := newTestRegistry(t)
	digest := reg.push(t, "app:1", small(t))
	dir, told := t.TempDir(), t.TempDir()
	verifierProgram(t, dir, "remember", `printf '%s\n' "$@" >`+told+`/args; cat >`+told+`/stdin; echo fine`)
	s := openStore(t, Config{HostsDir: reg.hosts(t), Verifiers: verifiers(dir)})
	pullImage(t, s, app)

	args := test.Value(os.ReadFile(filepath.Join(told, "args")))(t)
	want := []string{"-name", app, "-digest", digest, "-stdin-media-type", imagespec.MediaTypeDescriptor}
	test.EqualLists(t, "arguments", strings.Fields(string(args)), want)
	stdin := test.Value(os.ReadFile(filepath.Join(told, "stdin")))(t)
	var desc imagespec.Descriptor
	test.Must(t, json.Unmarshal(stdin, &desc))
	if desc.Digest.String() != digest || desc.Size == 0 || desc.MediaType == "" {
		t.Errorf("the verifier read the descriptor %+v, want digest %s", desc, digest)
	}
}

func TestRefusedImageLeavesNothing(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	for name, c := range map[string]struct {
		programs map[string]string
		timeout  time.Duration
		says     []string
	}{
		"refused":                   {map[string]string{"a": "cat >/dev/null; echo the signature is of nobody we know; exit 1"}, 0, []string{"a rejected", "exit code 1", "of nobody we know"}},
		"second refuses":            {map[string]string{"a": "echo yes", "b": "echo no; exit 3"}, 0, []string{"b rejected", "exit code 3"}},
		"timeout":                   {map[string]string{"a": "exec sleep 60"}, 100 * time.Millisecond, []string{"verifier a"}},
		"not executable":            {map[string]string{"a": ""}, 0, []string{"verifier a", "permission denied"}},
		"long output":               {map[string]string{"a": "yes x | head -c 100000; exit 1"}, 0, []string{"a rejected"}},
		"closes its standard input": {map[string]string{"a": "exec <&-; exit 1"}, 0, []string{"a rejected"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for program, script := range c.programs {
				verifierProgram(t, dir, program, script)
				if script == "" {
					test.Must(t, os.Chmod(filepath.Join(dir, program), 0o644))
				}
			}
			v := verifiers(dir)
			if c.timeout > 0 {
				v.Timeout = c.timeout
			}
			s := openStore(t, Config{HostsDir: reg.hosts(t), Verifiers: v})
			reg.forgetHits()
			wantRefused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), append(c.says, dir, app)...)
			wantStored(t, s, 0, 0)
			if len(s.List()) != 0 || leasesLeft(t, s) != 0 {
				t.Errorf("left are images %v, %d leases", s.List(), leasesLeft(t, s))
			}
			if n := reg.count("GET", "/blobs/"); n != 0 {
				t.Errorf("%d blobs were requested, though the image was refused", n)
			}
		})
	}
}

func TestVerifiersThatLetPass(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", small(t))
	refusing := t.TempDir()
	verifierProgram(t, refusing, "a", "exit 0")
	verifierProgram(t, refusing, "b", "exit 1")
	for name, v := range map[string]pull.Verifiers{
		"no directory":    verifiers(filepath.Join(t.TempDir(), "none")),
		"empty directory": verifiers(t.TempDir()),
		"not configured":  {},
	} {
		s := openStore(t, Config{HostsDir: reg.hosts(t), Verifiers: v})
		test.Checkf(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), "%s", name)
	}
	s := openStore(t, Config{HostsDir: reg.hosts(t), Verifiers: verifiers(refusing)})
	wantRefused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), "b rejected")
}

// An image on the node is verified again at each pull, because the verifiers may have changed. A
// refused image stays in the store, for the pods that use it.
func TestVerifierIsAskedAtEachPull(t *testing.T) {
	dir := t.TempDir()
	_, s, img := pulled(t, Config{Verifiers: verifiers(dir)}, small(t))
	verifierProgram(t, dir, "a", "echo not any more; exit 1")
	wantRefused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), "not any more")
	if got, err := s.Get(app); err != nil || got.ID != img.ID {
		t.Errorf("the image that was pulled before is %v, %v", got, err)
	}
	test.Must(t, os.Remove(filepath.Join(dir, "a")))
	pullImage(t, s, app)
}

func TestVerifiersNeedATimeout(t *testing.T) {
	test.Is(t, test.Err(Open(t.Context(), Config{Root: t.TempDir(), Verifiers: pull.Verifiers{BinDir: t.TempDir()}})), errdefs.IsInvalidArgument, "open without a timeout")
}
