package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	oneMirror = "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\nlocation = \"m.example\"\n[[registry]]\nlocation = \"b.example\"\ninsecure = true\n"
	onePolicy = `{"default": [{"type": "reject"}], "transports": {"docker": {"a.example": [{"type": "sigstoreSigned", "keyPath": "/k"}]}}}`
)

// importing runs berth config import on files with these texts.
func importing(t *testing.T, dir string, files map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	command := []string{"config", "import"}
	for _, name := range []string{"registries.conf", "policy.json", "crio.conf"} {
		if text, ok := files[name]; ok {
			command = append(command, filepath.Join(dir, name))
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out, errs bytes.Buffer
	code = run(t.Context(), append(command, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

func TestImportRegistriesToStdout(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := importing(t, dir, map[string]string{"registries.conf": oneMirror, "policy.json": onePolicy})
	for _, want := range []string{
		"# a.example/hosts.toml\n# from ", "server = \"https://a.example\"\n\n[host.\"https://m.example\"]\n",
		"# b.example/hosts.toml\n", "# verify.toml\n# from ", "prefix = 'a.example'\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("stdout lacks %q:\n%s", want, stdout)
		}
	}
	if code != 0 || !strings.Contains(stderr, "note: "+filepath.Join(dir, "policy.json")+": transports.docker.") {
		t.Errorf("exit status %d: %s", code, stderr)
	}

	code, stdout, stderr = importing(t, dir, map[string]string{"registries.conf": oneMirror}, "-o", "json")
	var answer struct{ Files map[string]string }
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil || code != 0 || !strings.Contains(answer.Files["b.example/hosts.toml"], "skip_verify = true") {
		t.Errorf("exit status %d: %v, %s, %s", code, err, stdout, stderr)
	}

	// A drop-in must not get lines of other files.
	code, stdout, stderr = importing(t, dir, map[string]string{"registries.conf": oneMirror, "crio.conf": "[crio.runtime.runtimes.a]\nruntime_path = \"/bin/a\"\n"})
	if code != exitConfig || stdout != "" || !strings.Contains(stderr, "--hosts-dir") {
		t.Errorf("exit status %d: %s, %s", code, stdout, stderr)
	}
}

func TestImportRegistriesIntoFiles(t *testing.T) {
	dir := t.TempDir()
	hosts, policy := filepath.Join(dir, "hosts.d"), filepath.Join(dir, "etc/verify.toml")
	both := map[string]string{"registries.conf": oneMirror, "policy.json": onePolicy}
	flags := []string{"--hosts-dir", hosts, "--verify-policy", policy}
	code, stdout, stderr := importing(t, dir, both, flags...)
	a, b := filepath.Join(hosts, "a.example/hosts.toml"), filepath.Join(hosts, "b.example/hosts.toml")
	if code != 0 || stdout != "" || strings.Count(stderr, "wrote ") != 3 {
		t.Fatalf("exit status %d: %s, %s", code, stdout, stderr)
	}
	if !strings.Contains(read(t, a), "m.example") || !strings.Contains(read(t, b), "skip_verify") || !strings.Contains(read(t, policy), "default = 'refuse'") {
		t.Error("files are not what they should be")
	}
	if info, err := os.Stat(a); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if code, _, stderr := importing(t, dir, both, flags...); code != 0 || strings.Contains(stderr, "wrote ") {
		t.Errorf("the same again: exit status %d: %s", code, stderr)
	}

	// One file that differs keeps all others from being written.
	if err := os.WriteFile(b, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = importing(t, dir, both, flags...)
	if _, err := os.Stat(a); code != exitConfig || err == nil || read(t, b) != "mine" || !strings.Contains(stderr, b+" exists with other content") {
		t.Errorf("a file that differs: exit status %d: %s", code, stderr)
	}
}

// TestImportRegistriesWithMistakes: nothing is written of what is held back elsewhere.
func TestImportRegistriesWithMistakes(t *testing.T) {
	for want, files := range map[string]map[string]string{
		`registry 3 ("c.example").blocked: a hosts.toml cannot block`: {"registries.conf": oneMirror + "[[registry]]\nlocation = \"c.example\"\nblocked = true\n", "policy.json": onePolicy},
		"default.type: is signedBy":                                   {"registries.conf": oneMirror, "policy.json": `{"default": [{"type": "signedBy"}]}`},
		"registries.conf:8:":                                          {"registries.conf": oneMirror + "x = 1\n"},
	} {
		dir := t.TempDir()
		hosts, policy := filepath.Join(dir, "hosts.d"), filepath.Join(dir, "verify.toml")
		for _, flags := range [][]string{nil, {"--hosts-dir", hosts, "--verify-policy", policy}} {
			code, stdout, stderr := importing(t, dir, files, flags...)
			_, noHosts := os.Stat(hosts)
			_, noPolicy := os.Stat(policy)
			if code != exitConfig || stdout != "" || !strings.Contains(stderr, want) || noHosts == nil || noPolicy == nil {
				t.Errorf("%s: exit status %d, hosts %v, policy %v: %s, %s", want, code, noHosts, noPolicy, stdout, stderr)
			}
		}
	}
}
