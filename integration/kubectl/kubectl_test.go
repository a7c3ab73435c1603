package kubectl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestKubectl runs all tests of this package against one server.
func TestKubectl(t *testing.T) {
	b := newBed(t)
	for _, one := range []struct {
		name string
		test func(*testing.T, *bed)
	}{
		{"Plugin", plugin},
		{"ManyNodes", manyNodes},
		{"Audit", audit},
		{"Fit", fit},
		{"Classes", classes},
		{"Policy", policies},
		{"PolicyRights", policyRights},
		{"PolicyWithoutClass", policyWithoutClass},
		{"Rights", rights},
		{"NobodyAnswers", nobodyAnswers},
		{"Generate", generate},
	} {
		t.Run(one.name, func(t *testing.T) { one.test(t, b) })
	}
}

// plugin checks that kubectl finds the plugin and passes its arguments on.
func plugin(t *testing.T, b *bed) {
	r := run(t, "", []string{"KUBECONFIG=" + b.admin}, "--version")
	if r.code != 0 {
		t.Fatalf("kubectl berth --version: %+v", r)
	}
	has(t, r.stdout, "kubectl berth version ")
	if r := run(t, "", nil, "audti"); r.code != 2 {
		t.Errorf("an unknown command: %+v", r)
	} else {
		has(t, r.stderr, `unknown command "audti" for "kubectl berth"`)
	}
	if r := run(t, "", nil, "generate", "--frobnicate"); r.code != 2 {
		t.Errorf("an unknown flag: %+v", r)
	}
	// For completion, a shell calls kubectl, kubectl calls the script, and the script the plugin.
	script, err := filepath.Abs("../../contrib/kubectl")
	testbed.Must(t, err)
	t.Setenv("PATH", script+":"+os.Getenv("PATH"))
	c := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Kubectl), "__complete", "berth", "policy", "--workloads", "")
	c.Env = append(os.Environ(), "PATH="+testbed.Built(t)+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
	if out, err := c.Output(); err != nil || !strings.Contains(string(out), "deny\n") {
		t.Errorf("kubectl completes %q, %v", out, err)
	}
	has(t, berth(t, 0, b.admin, "", "__complete", "--namespace", "").stdout, "kube-system\n")
}
