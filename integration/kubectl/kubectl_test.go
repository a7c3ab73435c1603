package kubectl

import "testing"

// TestKubectl shares one server.
func TestKubectl(t *testing.T) {
	b := newBed(t)
	for _, one := range []struct {
		name string
		test func(*testing.T, *bed)
	}{
		{"Plugin", plugin},
		{"Nodes", nodes},
		{"ManyNodes", manyNodes},
		{"Audit", audit},
		{"Fit", fit},
		{"Rights", rights},
		{"Apply", apply},
		{"ApplyFromNodes", applyFromNodes},
		{"ApplyAllOrNone", applyAllOrNone},
		{"ApplyIsUndone", applyIsUndone},
		{"ApplyGivenWrong", applyGivenWrong},
	} {
		t.Run(one.name, func(t *testing.T) { one.test(t, b) })
	}
}

// kubectl finds the program, and hands over what it gets.
func plugin(t *testing.T, b *bed) {
	r := run(t, "", []string{"KUBECONFIG=" + b.admin}, "--version")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	has(t, r.stdout, "kubectl berth version ")
	if r := run(t, "", nil, "nodse"); r.code != 2 {
		t.Errorf("%+v", r)
	} else {
		has(t, r.stderr, `unknown command "nodse" for "kubectl berth"`)
	}
	if r := run(t, "", nil, "apply", "--frobnicate"); r.code != 2 {
		t.Errorf("%+v", r)
	}
	has(t, berth(t, 0, b.admin, "", "__complete", "apply", "--dry-run", "").stdout, "none\nclient\nserver\n")
	has(t, berth(t, 0, b.admin, "", "__complete", "--context", "").stdout, "test\n")
	has(t, berth(t, 0, b.admin, "", "__complete", "--namespace", "").stdout, "kube-system\n")
}
