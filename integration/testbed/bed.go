package testbed

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bed is a berth with a network, and with a registry that has an image.
type Bed struct {
	*Berth
	CNI      *CNI
	Registry *Registry
	// Image is the reference of busybox in the registry. It is not pulled yet.
	Image string
}

// StartBed starts a berth with these options and a registry. name is the name of its image. By
// default the only handler is runc, unless options.Config has handlers, and CNI is a Plain network.
func StartBed(t T, name string, options Options) *Bed {
	t.Helper()
	if options.Runtimes == nil && !strings.Contains(options.Config, "[runtimes.") {
		options.Runtimes = map[string]string{"runc": Part(t, Runc)}
	}
	if options.CNI == nil {
		options.CNI = NewCNI(t, Plain)
	}
	b := &Bed{CNI: options.CNI, Registry: NewRegistry(t, RegistryOptions{})}
	b.Image = b.Registry.Push(t, name, Busybox(t))
	options.Registries = append(options.Registries, b.Registry)
	b.Berth = StartBerth(t, options)
	return b
}

// Rest pulls the image, runs and removes a pod, because some things stay (the layers of the image,
// the pods' cgroup), and restarts the daemon, so that no supervisor idles. It returns a snapshot of
// the host after that.
func (b *Bed) Rest(t T) Snapshot {
	t.Helper()
	b.Client.RunPod(t, PodSpec{Image: b.Image, Command: []string{"true"}}).Remove(t)
	b.Restart(t)
	return b.Snapshot(t)
}

// NothingLeft removes all pods and fails if the host has more than at rest.
func (b *Bed) NothingLeft(t T, atRest Snapshot) {
	t.Helper()
	Checkf(t, b.Client.RemoveAllPods(context.Background()), "remove what is listed")
	// Idle supervisors wait a minute for the next pod; a restart ends them.
	b.Restart(t)
	b.NoLeaks(t, atRest)
}

// DropInPath is the path of the drop-in with that name.
func (b *Berth) DropInPath(name string) string {
	return filepath.Join(b.Dir, "conf.d", name+".toml")
}

// DropIn writes a drop-in as a careful installer does: to a temporary name, and then renames it.
func (b *Berth) DropIn(t T, name, text string) {
	t.Helper()
	temporary := filepath.Join(b.Dir, "conf.d", "."+name)
	Mustf(t, os.WriteFile(temporary, []byte(text), 0o600), "write a drop-in")
	Mustf(t, os.Rename(temporary, b.DropInPath(name)), "write a drop-in")
}

// Within returns a context with a time limit for one call.
func Within(t T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// maxText limits the length of errors, because they become events.
const maxText = 1024

// Refused fails unless err has the code and all texts.
func Refused(t T, err error, code codes.Code, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("the call succeeded; want %s", code)
		return
	}
	st := status.Convert(err)
	if st.Code() != code {
		t.Errorf("code is %s, want %s: %s", st.Code(), code, st.Message())
	}
	if len(st.Message()) > maxText {
		t.Errorf("the text has %d bytes, more than %d: %s", len(st.Message()), maxText, st.Message())
	}
	for _, text := range texts {
		Contains(t, st.Message(), text, "the text")
	}
}

// RunBeside runs tests with -parallel at twice the number of processors, unless the flag is set:
// most of the time the tests wait.
func RunBeside(m interface{ Run() int }) (status int) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	return m.Run()
}
