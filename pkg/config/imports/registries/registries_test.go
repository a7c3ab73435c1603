package registries

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func conf1(text string) Result {
	return Translate([]File{{"/etc/containers/registries.conf", []byte(text)}})
}

func policy1(text string) Result {
	return Translate([]File{{"/etc/containers/policy.json", []byte(text)}})
}

// told writes findings on one line each.
func told(all []Finding) string {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%d %s: %s; %s\n", f.Line, f.Key, f.Why, f.Do)
	}
	return b.String()
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Kind
	}{
		{"/etc/containers/registries.conf", "", Conf},
		{"/etc/containers/registries.conf.d/50-mine.conf", "", Conf},
		{"/etc/containers/registries.conf.d/README", "", ""},
		{"/etc/containers/policy.json", "", Policy},
		{"mine.toml", "[[registry]]\nlocation = \"a.example\"", Conf},
		{"mine.toml", "  unqualified-search-registries = []", Conf},
		{"mine.toml", "[registries.search]\nregistries = []", Conf},
		{"mine.toml", "# [[registry]]", ""},
		{"mine.json", "\n{\"default\": []}", Policy},
		{"mine.json", "{\"auths\": {}}", ""},
		{"config.toml", "[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"x\"", ""},
		{"crio.conf", "[crio.runtime]\ndefault_runtime = \"runc\"", ""},
	} {
		if got := KindOf(c.name, []byte(c.text)); got != c.want {
			t.Errorf("%s, %q: %q, want %q", c.name, c.text, got, c.want)
		}
	}
}

func TestHosts(t *testing.T) {
	for name, c := range map[string]struct{ conf, want string }{
		"mirrors in order": {`
unqualified-search-registries = ["docker.io"]
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "first.example"
[[registry.mirror]]
location = "second.example:5000"
pull-from-mirror = "all"`, `server = "https://registry-1.docker.io"

[host."https://first.example"]
capabilities = ["pull", "resolve"]

[host."https://second.example:5000"]
capabilities = ["pull", "resolve"]
`},
		"insecure mirror": {`
[[registry]]
location = "a.example"
[[registry.mirror]]
location = "m.example:5000"
insecure = true`, `server = "https://a.example"

[host."https://m.example:5000"]
capabilities = ["pull", "resolve"]
skip_verify = true

[host."http://m.example:5000"]
capabilities = ["pull", "resolve"]
`},
		"insecure": {`
[[registry]]
prefix = "a.example:5000"
insecure = true`, `server = "http://a.example:5000"

[host."https://a.example:5000"]
capabilities = ["pull", "resolve"]
skip_verify = true
`},
		"by digest": {`
[[registry]]
location = "a.example"
[[registry.mirror]]
location = "m.example"
pull-from-mirror = "digest-only"`, `server = "https://a.example"

[host."https://m.example"]
capabilities = ["pull"]
`},
		"all by digest": {`
[[registry]]
location = "a.example"
mirror-by-digest-only = true
[[registry.mirror]]
location = "docker.io"`, `server = "https://a.example"

[host."https://registry-1.docker.io"]
capabilities = ["pull"]
`},
		"another host": {`
[[registry]]
prefix = "a.example"
location = "b.example"`, `server = "https://b.example"
`},
	} {
		r := conf1(c.conf)
		if len(r.Problems) > 0 || len(r.Hosts) != 1 {
			t.Errorf("%s: %+v", name, r)
			continue
		}
		_, got, _ := strings.Cut(string(r.Hosts[0].Text), "\n")
		if got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
		var any map[string]any
		if err := toml.Unmarshal(r.Hosts[0].Text, &any); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := conf1("[[registry]]\nlocation = \"a.example\"\n[[registry]]\nlocation = \"b.example\"\ninsecure = true\n")
	if len(r.Problems) > 0 || len(r.Hosts) != 1 || r.Hosts[0].Registry != "b.example" || !strings.Contains(told(r.Notes), "does not do anyway") {
		t.Errorf("%+v", r)
	}
}

func TestWhatHostsCannotSay(t *testing.T) {
	one := "[[registry]]\nlocation = \"a.example\"\n"
	mirrored := one + "[[registry.mirror]]\n"
	for text, want := range map[string]string{
		one + "blocked = true":                                         `registry 1 ("a.example").blocked: a hosts.toml cannot block`,
		"[[registry]]\nprefix = \"*.example\"":                         "is a wildcard",
		"[[registry]]\nprefix = \"a.example/b\"":                       "prefix: has a path",
		"[[registry]]\nprefix = \"a\"":                                 "is not a registry",
		"[[registry]]\nprefix = \"..\"":                                "is not a registry",
		"[[registry]]\nprefix = \"a..b\"":                              "is not a registry",
		"[[registry]]\nprefix = \"a.example:x\"":                       "is not a registry",
		"[[registry]]\nprefix = \"_default\"":                          "is not a registry",
		"[[registry]]\nprefix = \"a.example\\n\"":                      "is not a registry",
		"[[registry]]":                                                 "prefix: is missing",
		"[[registry]]\nprefix=\"a.example\"\nlocation=\"b.example/c\"": "location: leads to another path",
		mirrored + "location = \"m.example/proxy\"":                    `write a hosts.toml by hand, with [host."https://m.example/v2/proxy"]`,
		mirrored + "location = \"https://m.example\"":                  "is not a registry",
		mirrored + "location = \"m.example\\\"]\"":                     "is not a registry",
		mirrored: "mirror 1.location: is missing",
		mirrored + "location = \"m.example\"\npull-from-mirror = \"tag-only\"":                                          "tag-only, which",
		mirrored + "location = \"m.example\"\npull-from-mirror = \"x\"":                                                 `is "x"`,
		one + "mirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"m.example\"\npull-from-mirror = \"all\"": "beside mirror-by-digest-only",
		one + one:              `is also in /etc/containers/registries.conf, registry 1 ("a.example")`,
		one + "mirrors = 1":    "3 registry.mirrors: is a key that is not known",
		one + "insecure = 1":   "3 : cannot be read",
		"[[registry]\n":        "1 : cannot be read",
		"aliases = 1":          "cannot be read",
		"[aliases]\na = \"b\"": "aliases: berth has no aliases",
		"[registries.search]\nregistries = [\"a.example\"]":            "is of version 1",
		"unqualified-search-registries = [\"docker.io\", \"quay.io\"]": `names "quay.io"`,
		"credential-helpers = [\"containers-auth.json\", \"pass\"]":    `names "pass"`,
	} {
		good := "\n[[registry]]\nlocation = \"good.example\"\ninsecure = true\n"
		r := conf1(text + good)
		if !strings.Contains(told(r.Problems), want) || len(r.Hosts) != 0 {
			t.Errorf("%s\nproblems are\n%s\nwant %q, hosts are %v", text, told(r.Problems), want, r.Hosts)
		}
	}
}

func TestTwoConfs(t *testing.T) {
	files := []File{
		{"/etc/containers/registries.conf", []byte("[[registry]]\nlocation = \"b.example\"\ninsecure = true\n")},
		{"/etc/containers/registries.conf.d/a.conf", []byte("[[registry]]\nlocation = \"a.example\"\ninsecure = true\n")},
	}
	if r := Translate(files); len(r.Problems) > 0 || len(r.Hosts) != 2 || r.Hosts[0].Registry != "a.example" {
		t.Errorf("%+v", r)
	}
	files[1].Text = files[0].Text
	if r := Translate(files); !strings.Contains(told(r.Problems), "is also in /etc/containers/registries.conf") {
		t.Errorf("%+v", r)
	}
}

func TestPolicy(t *testing.T) {
	r := policy1(`{
  "default": [{"type": "reject"}],
  "transports": {
    "docker-daemon": {"": [{"type": "insecureAcceptAnything"}]},
    "docker": {
      "registry.k8s.io": [{"type": "insecureAcceptAnything"}],
      "docker.io/library/busybox": [{"type": "reject"}],
      "a.example:5000/team": [{"type": "sigstoreSigned", "keyPath": "/k/a.pub", "signedIdentity": {"type": "matchRepository"}}],
      "b.example": [{"type": "sigstoreSigned", "keyPaths": ["/k/a.pub", "/k/b.pub"]}]
    }
  }
}`)
	want := `# from "/etc/containers/policy.json"
default = 'refuse'

[[rules]]
prefix = 'a.example:5000/team'
action = 'signed'
keys = ['/k/a.pub']
match_reference = true

[[rules]]
prefix = 'b.example'
action = 'signed'
keys = ['/k/a.pub', '/k/b.pub']
match_reference = true

[[rules]]
prefix = 'docker.io/library/busybox'
action = 'refuse'

[[rules]]
prefix = 'registry.k8s.io'
action = 'accept'
`
	if len(r.Problems) > 0 || string(r.Policy) != want {
		t.Errorf("problems are %s, policy is\n%s\nwant\n%s", told(r.Problems), r.Policy, want)
	}
	notes := told(r.Notes)
	for _, want := range []string{"transports.docker-daemon: is not applicable", `"a.example:5000/team".signedIdentity: a signature that names a tag`, `"b.example".signedIdentity: a signature that names no tag`} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes are\n%s\nwant %q", notes, want)
		}
	}
	r = policy1(`{"default": [{"type": "reject"}], "transports": {"docker": {"": [{"type": "insecureAcceptAnything"}]}}}`)
	if !strings.Contains(string(r.Policy), "default = 'accept'") {
		t.Errorf("docker's own default: %s", r.Policy)
	}
}

func TestWhatThePolicyCannotSay(t *testing.T) {
	scope := func(name, requirement string) string {
		return `{"default": [{"type": "reject"}], "transports": {"docker": {"good.example": [{"type": "insecureAcceptAnything"}], "` + name + `": [` + requirement + `]}}}`
	}
	const key = `{"type": "sigstoreSigned", "keyPath": "/k"`
	for text, want := range map[string]string{
		``:                                    "cannot be read",
		`{`:                                   "cannot be read",
		`{}`:                                  "default: has 0 requirements",
		`{"default": []}`:                     "default: has 0 requirements",
		`{"default": [{"type": "reject"}]} x`: "cannot be read",
		`{"default": [{"type": "reject"}], "default": [{"type": "insecureAcceptAnything"}]}`:                          "written twice",
		`{"default": [{"type": "reject"}], "Default": [{"type": "insecureAcceptAnything"}]}`:                          "written twice",
		`{"default": [{"type": "reject"}], "more": 1}`:                                                                "cannot be read",
		`{"default": [{"type": "reject", "more": 1}]}`:                                                                "default: cannot be read",
		`{"default": [{"type": "reject"}, {"type": "insecureAcceptAnything"}]}`:                                       "default: has 2 requirements",
		`{"default": [` + key + `}]}`:                                                                                 "asks for signatures of all images",
		`{"default": [null]}`:                                                                                         `default.type: is ""`,
		scope("a.example", `{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/k"}`):                             "a signature of GPG",
		scope("a.example", `{"type": "signedBaseLayer"}`):                                                             `is "signedBaseLayer"`,
		scope("a.example", ``):                                                                                        "has 0 requirements",
		scope("a.example", key+`, "fulcio": {}}`):                                                                     "fulcio: is not translated",
		scope("a.example", key+`, "rekorPublicKeyPath": "/r"}`):                                                       "rekorPublicKeyPath: is not translated",
		scope("a.example", key+`, "pki": {}}`):                                                                        "pki: is not translated",
		scope("a.example", key+`, "other": {}}`):                                                                      "other: is a key that is not known",
		scope("a.example", key+`, "keyPaths": ["/k"]}`):                                                               "beside keyPaths",
		scope("a.example", `{"type": "sigstoreSigned", "keyData": "eA=="}`):                                           "keyData: has a key in the policy",
		scope("a.example", `{"type": "sigstoreSigned", "keyPath": 1}`):                                                "keyPath: cannot be read",
		scope("a.example", `{"type": "sigstoreSigned", "keyPath": "k"}`):                                              "not an absolute path",
		scope("a.example", `{"type": "sigstoreSigned", "keyPath": ""}`):                                               "not an absolute path",
		scope("a.example", `{"type": "sigstoreSigned"}`):                                                              "keyPath: is missing",
		scope("a.example", key+`, "signedIdentity": {"type": "matchExact"}}`):                                         `is "matchExact"`,
		scope("a.example", key+`, "signedIdentity": {"type": "exactRepository", "dockerRepository": "a.example/b"}}`): `is "exactRepository"`,
		scope("a.example", key+`, "signedIdentity": {"type": "matchRepository", "x": 1}}`):                            "signedIdentity: cannot be read",
		scope("*.example", `{"type": "reject"}`):                                                                      "is a wildcard",
		scope("a.example/b:1", `{"type": "reject"}`):                                                                  "is of one tag or digest",
		scope("a.example/b@sha256:12", `{"type": "reject"}`):                                                          "is of one tag or digest",
		scope("a.example/", `{"type": "reject"}`):                                                                     "is not a repository",
		scope("a.example/B", `{"type": "reject"}`):                                                                    "is not a repository",
		scope("busybox", `{"type": "reject"}`):                                                                        "does not begin with a registry",
		scope("A.example", `{"type": "reject"}`):                                                                      "in lower case",
		scope("a.example:443/b", `{"type": "reject"}`):                                                                "without the port 443",
	} {
		r := policy1(text)
		if !strings.Contains(told(r.Problems), want) || r.Policy != nil {
			t.Errorf("%s\nproblems are\n%s\nwant %q; policy is %s", text, told(r.Problems), want, r.Policy)
		}
	}
	two := []File{{"a/policy.json", []byte(`{"default": [{"type": "reject"}]}`)}, {"b/policy.json", []byte(`{"default": [{"type": "reject"}]}`)}}
	if r := Translate(two); !strings.Contains(told(r.Problems), "another policy.json") {
		t.Errorf("two policies: %+v", r)
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add("registries.conf", "[[registry]]\nprefix = \"a.example\"\n[[registry.mirror]]\nlocation = \"b.example\"\ninsecure = true\n")
	f.Add("policy.json", `{"default": [{"type": "reject"}], "transports": {"docker": {"a.example": [{"type": "sigstoreSigned", "keyPath": "/k"}]}}}`)
	f.Fuzz(func(t *testing.T, name, text string) {
		r := Translate([]File{{name, []byte(text)}})
		for _, h := range r.Hosts {
			var any map[string]any
			if err := toml.Unmarshal(h.Text, &any); err != nil || strings.ContainsAny(h.Registry, "/\\\x00") || strings.Contains(h.Registry, "..") {
				t.Errorf("%q: %s, %v", h.Registry, h.Text, err)
			}
		}
		var any map[string]any
		if err := toml.Unmarshal(r.Policy, &any); err != nil {
			t.Errorf("%s: %v", r.Policy, err)
		}
	})
}
