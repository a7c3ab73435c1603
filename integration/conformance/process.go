package conformance

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var processChecks = []check{
	{name: "command and args", run: commandAndArgs},
	{name: "environment", run: environment},
	{name: "environment values with control characters", run: environmentBytes},
	{name: "environment values that are not UTF-8", berth: true, run: environmentNotUTF8},
	{name: "working directory", run: workingDir},
	{name: "user and group by number", run: userByNumber},
	{name: "user by name", run: userByName},
	{name: "the image's user", run: imageUser},
	{name: "supplemental groups", run: supplementalGroups},
	{name: "supplemental groups, strict", run: strictGroups},
	{name: "a big number without an entry in passwd", run: userWithoutEntry},
	{name: "stdin is empty", run: stdinEmpty},
	{name: "a terminal has TERM", run: ttyTerm},
}

func commandAndArgs(t *testing.T, n *node) {
	p := n.pod(t)
	id := n.pull(t, n.Image.Process)
	for name, c := range map[string]struct {
		command, args []string
		want          string
	}{
		"neither":      {nil, nil, "entry cmd\n"},
		"args only":    {nil, []string{"my", "args"}, "entry my args\n"},
		"command only": {[]string{"/bin/echo", "mine"}, nil, "mine\n"},
		"both":         {[]string{"/bin/echo"}, []string{"both", "a b"}, "both a b\n"},
	} {
		got := p.output(t, c.command, func(cfg *runtimeapi.ContainerConfig) {
			cfg.Image, cfg.Args = &runtimeapi.ImageSpec{Image: id}, c.args
		})
		testbed.Same(t, got, c.want, "%s: printed", name)
	}
}

func environment(t *testing.T, n *node) {
	p := n.pod(t)
	id := n.pull(t, n.Image.Process)
	img := func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: id} }
	if got := p.output(t, sh("echo $FROM_IMAGE; echo $PATH"), img); !strings.HasPrefix(got, "yes\n/") {
		t.Errorf("the image's FROM_IMAGE and PATH are %q", got)
	}
	got := p.output(t, sh("echo $FROM_IMAGE; echo $NEW; echo \"$SPACES\"; echo $TWICE"), img,
		env("FROM_IMAGE", "config"), env("NEW", "a=b"), env("SPACES", " x  y "), env("TWICE", "first"), env("TWICE", "last"))
	testbed.Same(t, got, "config\na=b\n x  y \nlast\n", "printed")
	if got := p.output(t, sh("tr '\\0' '\\n' < /proc/1/environ | grep -c '^TWICE='"), env("TWICE", "first"), env("TWICE", "last")); got != "1\n" {
		t.Errorf("a key that was sent twice is there %s times", strings.TrimSpace(got))
	}
}

// environmentBytes sends a value with newlines and control characters.
func environmentBytes(t *testing.T, n *node) {
	got := n.pod(t).output(t, printRaw(), env("RAW", "\n\t\x01é\n"))
	if want := "0a0901c3a90a"; got != want && got != want+"\n" {
		t.Errorf("the value arrived as %s, want %s", got, want)
	}
}

func printRaw() []string { return sh(`printf %s "$RAW" | od -An -tx1 | tr -d ' \n'`) }

// environmentNotUTF8 allows a refusal, because OCI's configuration is JSON, which cannot represent
// the value. If the value is accepted, it must arrive unchanged.
func environmentNotUTF8(t *testing.T, n *node) {
	p := n.pod(t)
	raw := env("RAW", "\xff\xfe")
	c, err := p.tryCreate(t, p.containerConfig(printRaw(), raw))
	if err != nil {
		mustFail(t, err, "CreateContainer with a value that is not UTF-8", codes.FailedPrecondition)
		return
	}
	c.remove(t)
	testbed.Same(t, strings.TrimSpace(p.output(t, printRaw(), raw)), "fffe", "the value arrived as")
}

func workingDir(t *testing.T, n *node) {
	p := n.pod(t)
	testbed.Same(t, p.output(t, sh("pwd"), func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/tmp" }), "/tmp\n", "the config's directory")
	id := n.pull(t, n.Image.Process)
	testbed.Same(t, p.output(t, sh("pwd"), func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: id} }), "/work\n", "the image's directory")
	testbed.Same(t, p.output(t, sh("pwd")), "/\n", "no directory")
	testbed.Same(t, p.output(t, sh("pwd"), func(c *runtimeapi.ContainerConfig) { c.WorkingDir = "/made/for/me" }), "/made/for/me\n", "a directory that does not exist")
}

func asUser(uid, gid int64) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.RunAsUser = &runtimeapi.Int64Value{Value: uid}
		if gid >= 0 {
			s.RunAsGroup = &runtimeapi.Int64Value{Value: gid}
		}
	})
}

func userByNumber(t *testing.T, n *node) {
	p := n.pod(t)
	testbed.Same(t, p.output(t, sh("id -u; id -g"), asUser(1000, 3000)), "1000\n3000\n", "uid and gid")
	// Without a group in the config, the program gets the group of /etc/passwd.
	testbed.Same(t, p.output(t, sh("id -u; id -g"), asUser(1000, -1)), "1000\n1000\n", "uid alone")
	c := p.start(t, forever(), asUser(1000, 3000))
	u := c.status(t).GetUser().GetLinux()
	if u.GetUid() != 1000 || u.GetGid() != 3000 || !slices.Contains(u.GetSupplementalGroups(), 3000) {
		t.Errorf("status says %v", u)
	}
}

func userByName(t *testing.T, n *node) {
	p := n.pod(t)
	byName := security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "app" })
	testbed.Same(t, p.output(t, sh("id -u; id -g"), byName), "1000\n1000\n", "uid and gid of app")
	group := security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsGroup = &runtimeapi.Int64Value{Value: 3000} })
	testbed.Same(t, p.output(t, sh("id -u; id -g"), byName, group), "1000\n3000\n", "app with group 3000")
}

// ofUserImage runs the image whose USER is app.
func (n *node) ofUserImage(t *testing.T) containerOption {
	t.Helper()
	id := n.pull(t, n.Image.User)
	return func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: id} }
}

func imageUser(t *testing.T, n *node) {
	p, img := n.pod(t), n.ofUserImage(t)
	testbed.Same(t, p.output(t, sh("id -u; id -g"), img), "1000\n1000\n", "uid and gid of the image's user")
	testbed.Same(t, p.output(t, sh("id -u; id -g"), img, asUser(0, 0)), "0\n0\n", "the config's user does not beat the image's")
}

func withGroups(policy runtimeapi.SupplementalGroupsPolicy, gids ...int64) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.SupplementalGroups, s.SupplementalGroupsPolicy = gids, policy
	})
}

func groupsOf(out string) []string {
	g := strings.Fields(out)
	slices.Sort(g)
	return slices.Compact(g)
}

func supplementalGroups(t *testing.T, n *node) {
	p, img := n.pod(t), n.ofUserImage(t)
	c := p.start(t, forever(), img, withGroups(runtimeapi.SupplementalGroupsPolicy_Merge, 5555))
	want := []string{"1000", "2000", "5555"}
	if got := groupsOf(p.output(t, sh("id -G"), img, withGroups(runtimeapi.SupplementalGroupsPolicy_Merge, 5555))); !slices.Equal(got, want) {
		t.Errorf("the program's groups are %v, want %v (the image's and the config's)", got, want)
	}
	if got := groupsOf(c.line(t, "id", "-G")); !slices.Equal(got, want) {
		t.Errorf("an exec's groups are %v, want %v", got, want)
	}
	got := slices.Clone(c.status(t).GetUser().GetLinux().GetSupplementalGroups())
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), []int64{1000, 2000, 5555}) {
		t.Errorf("status says groups %v", got)
	}
}

func strictGroups(t *testing.T, n *node) {
	st, err := n.Runtime.Status(call(t), &runtimeapi.StatusRequest{})
	must(t, err, "Status")
	if !st.GetFeatures().GetSupplementalGroupsPolicy() {
		if n.Berth {
			t.Fatal("features.supplemental_groups_policy is false")
		}
		t.Skip("the endpoint does not announce supplemental_groups_policy")
	}
	p, img := n.pod(t), n.ofUserImage(t)
	strict, want := withGroups(runtimeapi.SupplementalGroupsPolicy_Strict, 5555), []string{"1000", "5555"}
	if got := groupsOf(p.output(t, sh("id -G"), img, strict)); !slices.Equal(got, want) {
		t.Errorf("the program's groups are %v, want %v (the image's left out)", got, want)
	}
	c := p.start(t, forever(), img, strict)
	if got := groupsOf(c.line(t, "id", "-G")); !slices.Equal(got, want) {
		t.Errorf("an exec's groups are %v, want %v", got, want)
	}
	session := c.open(t, spdy, streams{}, "id", "-G")
	if code := session.exitCode(); code != 0 || !slices.Equal(groupsOf(session.stdout.String()), want) {
		t.Errorf("a streamed exec's groups are %q, want %v", session.stdout.String(), want)
	}
	got := slices.Clone(c.status(t).GetUser().GetLinux().GetSupplementalGroups())
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), []int64{1000, 5555}) {
		t.Errorf("status says groups %v", got)
	}
}

func userWithoutEntry(t *testing.T, n *node) {
	testbed.Same(t, n.pod(t).output(t, sh("id -u; id -g"), asUser(123456, -1)), "123456\n0\n", "uid and gid")
}

func stdinEmpty(t *testing.T, n *node) {
	testbed.Same(t, n.pod(t).output(t, sh("cat; echo ended")), "ended\n", "printed")
}

func ttyTerm(t *testing.T, n *node) {
	got := n.pod(t).output(t, sh("echo $TERM"), func(c *runtimeapi.ContainerConfig) { c.Tty = true })
	if strings.TrimSpace(got) != "xterm" {
		t.Errorf("TERM is %q", got)
	}
}
