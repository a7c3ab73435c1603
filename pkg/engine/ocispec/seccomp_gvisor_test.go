package ocispec

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// gVisor enforces a profile of the node in the containers that request it. Other containers
// do not get the annotation that enables the filter.
func TestGVisorEnforcesProfilesOfTheNode(t *testing.T) {
	const file = "/profiles/gvisor.json"
	allow := `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO"}]}`
	type sc = runtimeapi.LinuxContainerSecurityContext
	local := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: file}
	for name, tt := range map[string]struct {
		asks     *sc
		profile  string
		runtime  func(testing.TB) *probe.Runtime
		want     string
		mistaken string
	}{
		"Localhost":          {asks: &sc{Seccomp: local}, want: "true"},
		"in the old field":   {asks: &sc{SeccompProfilePath: "localhost/" + file}, want: "true"}, //nolint:staticcheck // Old clients send it.
		"under runc":         {asks: &sc{Seccomp: local}, runtime: runc},
		"RuntimeDefault":     {asks: &sc{Seccomp: &runtimeapi.SecurityProfile{}}},
		"no profile":         {asks: &sc{}},
		"an unknown action":  {asks: &sc{Seccomp: local}, profile: `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_KILL_PROCESS"}]}`, mistaken: "SCMP_ACT_KILL_PROCESS"},
		"an unknown default": {asks: &sc{Seccomp: local}, profile: `{"defaultAction":"SCMP_ACT_LOG"}`, mistaken: "SCMP_ACT_LOG"},
	} {
		t.Run(name, func(t *testing.T) {
			c, n := testContainer(t), modernNode()
			c.Runtime = runsc(t)
			if tt.runtime != nil {
				c.Runtime = tt.runtime(t)
			}
			if tt.profile == "" {
				tt.profile = allow
			}
			n.ReadFile = func(string) ([]byte, error) { return []byte(tt.profile), nil }
			was := c.Config.GetLinux().GetSecurityContext()
			was.Seccomp, was.SeccompProfilePath = tt.asks.Seccomp, tt.asks.SeccompProfilePath //nolint:staticcheck // Old clients send it.
			s, err := Build(c, n)
			if tt.mistaken != "" {
				if !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), tt.mistaken) {
					t.Fatalf("the error is %v", err)
				}
				return
			}
			test.Must(t, err)
			test.Equal(t, "the annotation", s.Annotations[annotationGVisorSeccomp], tt.want)
		})
	}
}

// gVisor filters a process that is exec'd in a container according to the sandbox's flags and the
// container's profile. A container that is not filtered must have no profile, or gVisor would
// filter only its probes and execs.
func TestGVisorFiltersWhatIsExecd(t *testing.T) {
	byDefault := &runtimeapi.SecurityProfile{}
	for name, tt := range map[string]struct {
		d                  handler.Definition
		runtime            func(testing.TB) *probe.Runtime
		annotated, profile bool
	}{
		"default flags":         {runtime: runsc, annotated: true},
		"by flag":               {runtime: runsc, d: handler.Definition{OCI: handler.OCIOptions{GlobalFlags: []string{"--oci-seccomp"}}}, profile: true},
		"by configuration file": {runtime: runsc, d: handler.Definition{ConfigPath: "/etc/runsc.toml"}, profile: true},
		"with another flag":     {runtime: runsc, d: handler.Definition{OCI: handler.OCIOptions{GlobalFlags: []string{"--platform=kvm"}}}, annotated: true},
		"under runc":            {runtime: runc, profile: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, n := testContainer(t), modernNode()
			c.Runtime, c.Sandbox.Definition = tt.runtime(t), &tt.d
			c.Config.GetLinux().GetSecurityContext().Seccomp = byDefault
			s := test.Value(Build(c, n))(t)
			test.Equal(t, "the container has a profile", s.Linux.Seccomp != nil, tt.profile)
			s = test.Value(BuildSandboxProcess(SandboxProcess{Sandbox: c.Sandbox, Runtime: c.Runtime}, n))(t)
			test.Equal(t, "the sandbox has the annotation", s.Annotations[annotationGVisorSeccomp] == "true", tt.annotated)
		})
	}
}
