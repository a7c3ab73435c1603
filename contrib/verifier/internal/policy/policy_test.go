package policy

import (
	"strings"
	"testing"
)

const example = `
default = "refuse"
docker_config = "/etc/berth/docker.json"
plain_http = ["registry.example:5000"]

[[rules]]
prefix = "Docker.io"
action = "accept"

[[rules]]
prefix = "docker.io/library"
action = "refuse"

[[rules]]
prefix = "docker.io/library/busybox"
action = "signed"
keys = ["/etc/berth/keys/a.pub"]
match_reference = true

[[rules]]
prefix = "ghcr.io/acme"
action = "signed"
trusted_root = "/etc/berth/trusted_root.json"
identities = [{issuer = "https://issuer.example", subject = "me@example"}]
`

func TestRuleOfAnImage(t *testing.T) {
	p, err := Parse([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"docker.io/other/busybox:1":                              "docker.io accept",
		"docker.io/library/alpine":                               "docker.io/library refuse",
		"docker.io/library/busybox:1":                            "docker.io/library/busybox signed",
		"docker.io/library/busybox/deeper:1":                     "docker.io/library/busybox signed",
		"docker.io/library/busybox2:1":                           "docker.io/library refuse",
		"docker.io/library2/busybox:1":                           "docker.io accept",
		"DOCKER.IO/library/busybox:1":                            "docker.io/library/busybox signed",
		"docker.io:443/library/busybox:1":                        "docker.io/library/busybox signed",
		"docker.io:0443/library/busybox:1":                       "docker.io/library/busybox signed",
		"ghcr.io:000443/acme/a:t":                                "ghcr.io/acme signed",
		"index.docker.io/library/busybox:1":                      "docker.io/library/busybox signed",
		"registry-1.docker.io/library/busybox:1":                 "docker.io/library/busybox signed",
		"docker.io/busybox:1":                                    "docker.io/library/busybox signed",
		"docker.io.evil.example/library/busybox:1":               " refuse",
		"docker.io:444/library/busybox:1":                        " refuse",
		"ghcr.io/acme/a@sha256:" + strings.Repeat("a", 64):       "ghcr.io/acme signed",
		"GHCR.io:443/acme/a:t@sha256:" + strings.Repeat("a", 64): "ghcr.io/acme signed",
		"ghcr.io/acme2/a:t":                                      " refuse",
		"quay.io/docker.io/library/busybox:1":                    " refuse",
	} {
		image, err := ParseImage(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r := p.For(image); r.Prefix+" "+string(r.Action) != want {
			t.Errorf("%s: rule %q, action %q, want %q", name, r.Prefix, r.Action, want)
		}
	}
}

func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"", "/", "busybox", "library/busybox:1", "docker.io", "docker.io/", "docker.io//busybox", "docker.io/../busybox", "docker.io/a/../b:1",
		"docker.io/a b", "docker.io/a\n:1", "docker.io/a:1\n", "docker.io/A:1", "docker.io/a:", "docker.io/a@sha256:12", "docker.io/a@", "docker.io./a:1",
		"user@docker.io/a:1", "https://docker.io/a:1", "docker.io/a?b=c:1", "docker.io/a%2fb:1", "docker.io\x00/a:1", "docker.io/a#b", "-name/a",
		"docker.io/" + strings.Repeat("a", 2000), "doc\u212Aer.io/a:1", "[::1/a:1", "docker.io:port/a:1", " docker.io/a:1",
	} {
		if image, err := ParseImage(name); err == nil {
			t.Errorf("%q is read as %+v", name, image)
		}
	}
}

func TestMistakesOfPolicies(t *testing.T) {
	rule := func(text string) string {
		return "default = \"refuse\"\n[[rules]]\nprefix = \"a.example\"\n" + text
	}
	const signed = "action = \"signed\"\n"
	for text, want := range map[string]string{
		"":                                   `default is ""`,
		"default = \"signed\"":               `default is "signed"`,
		"default = \"Accept\"":               `default is "Accept"`,
		"default = 1":                        "line 1",
		"default = \"refuse":                 "line 1",
		"default = \"refuse\"\ndefaults = 1": "line 2: unknown key defaults",
		"default = \"refuse\"\ndefault = \"accept\"":                "default",
		"default = \"refuse\"\ndocker_config = \"x\"":               "absolute",
		"default = \"refuse\"\nplain_http = [\"a.example/b\"]":      "is not a registry",
		"default = \"refuse\"\nplain_http = [\"a\"]":                "is not a registry",
		"default = \"refuse\"\nplain_http = [\"http://a.example\"]": "is not a registry",
		rule(""):                   `action is ""`,
		rule("action = \"maybe\""): `action is "maybe"`,
		rule("action = \"accept\"\nkeys = [\"/k\"]"):        "are for action",
		rule("action = \"refuse\"\nmatch_reference = true"): "are for action",
		rule(signed):                                                                                              "needs keys or identities",
		rule(signed + "keys = []"):                                                                                "needs keys or identities",
		rule(signed + "keys = [\"k\"]"):                                                                           "absolute",
		rule(signed + "keys = [\"/k\"]\nkey = \"/k\""):                                                            "line 6: unknown key rules.key",
		rule(signed + "keys = [\"/k\"]\ntrusted_root = \"/r\""):                                                   "trusted_root is for identities",
		rule(signed + "identities = [{issuer=\"a\"}]"):                                                            "needs issuer and subject",
		rule(signed + "identities = [{issuer=\"a\",subject=\"b\"}]"):                                              "need trusted_root",
		rule(signed + "trusted_root = \"/r\"\nidentities = [{issuer=\"a\",subject=\"b\",x=1}]"):                   "unknown key",
		rule(signed + "trusted_root = \"/r\"\nkeys=[\"/k\"]\nidentities=[{issuer=\"a\",subject=\"b\"}]"):          "not both",
		rule(signed + "trusted_root = \"/r\"\nmatch_reference = true\nidentities=[{issuer=\"a\",subject=\"b\"}]"): "match_reference is for keys",
		rule("action = \"accept\"\n[[rules]]\nprefix = \"A.example:443\"\naction = \"refuse\""):                   "another rule has this prefix",
		"default=\"refuse\"\n[[rules]]\naction=\"accept\"":                                                        "prefix is missing",
		"default=\"refuse\"\n[[rules]]\nprefix=\"busybox\"\naction=\"accept\"":                                    "is not a registry",
		"default=\"refuse\"\n[[rules]]\nprefix=\"*.example\"\naction=\"accept\"":                                  "is not a registry",
		"default=\"refuse\"\n[[rules]]\nprefix=\"a.example/\"\naction=\"accept\"":                                 "is not a registry",
		"default=\"refuse\"\n[[rules]]\nprefix=\"a.example/b:1\"\naction=\"accept\"":                              "is not a registry",
		`{"default": "refuse", "other": 1}`:                                                                       "unknown field",
		`{"default": "refuse", "Default": "accept"}`:                                                              `unknown field "Default"`,
		`{"default": "refuse", "default": "accept"}`:                                                              `duplicate field "default"`,
		`{"default": "refuse"} {}`:                                                                                "after top-level value",
		`{"default": "refuse"`:                                                                                    "unexpected end",
		`{"default": "refuse", "rules": [{"keys":1}]}`:                                                            "keys",
		`{"default": ` + strings.Repeat("[", 20):                                                                  "unexpected end",
		strings.Repeat("#", MaxSize+1):                                                                            "bytes",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s\nerror is %v, want %q", text, err, want)
		}
	}
}

func TestJSONPolicy(t *testing.T) {
	p, err := Parse([]byte(` {"default": "accept", "rules": [{"prefix": "a.example/b", "action": "signed", "keys": ["/k"], "match_reference": true}]}`))
	if err != nil {
		t.Fatal(err)
	}
	image, err := ParseImage("a.example/b/c:1")
	if r := p.For(image); err != nil || r.Action != Signed || r.Keys[0] != "/k" || !r.MatchReference {
		t.Errorf("rule is %+v, %v", r, err)
	}
}

func FuzzParseImage(f *testing.F) {
	f.Add("docker.io/library/busybox:1")
	f.Add("A:443/b@sha256:0")
	f.Fuzz(func(t *testing.T, name string) {
		image, err := ParseImage(name)
		if err != nil {
			return
		}
		again, err := ParseImage(image.Repository())
		if err != nil || again.Repository() != image.Repository() {
			t.Errorf("%q is read as %q, and that as %q, %v", name, image.Repository(), again.Repository(), err)
		}
	})
}
