// Package registries translates what containers' tools (CRI-O, podman) have on
// registries: registries.conf into hosts.toml files, and policy.json into the policy of
// contrib/verifier:
//
//	r := registries.Translate(files)
//	r.Hosts    // <registry>/hosts.toml, below registry.hosts_dir
//	r.Policy   // verify.toml
//	r.Problems // what cannot be said there; nothing of such a file is translated
//
// It decides and does nothing: files are read and written by others.
package registries

import (
	"bytes"
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Kind is what a file is.
type Kind string

const (
	// Conf is a registries.conf or a drop-in of it.
	Conf Kind = "registries.conf"
	// Policy is a policy.json.
	Policy Kind = "policy.json"
)

// File is a file and what is in it.
type File struct {
	Name string
	Text []byte
}

// Hosts is one hosts.toml.
type Hosts struct {
	// Registry is the name of its directory.
	Registry string
	Text     []byte
}

// Finding is what cannot be translated, or means something else.
type Finding struct {
	File string
	// Line and Column are 0 where only the key is known.
	Line, Column int
	Key          string
	// Why it is not translated, or how.
	Why string
	// Do is what to do about a problem.
	Do string
}

// Result is what files amount to. Hosts are sorted by registry.
type Result struct {
	Hosts []Hosts
	// Policy is nil without a policy.json.
	Policy []byte
	// Problems are about files of which nothing is translated.
	Problems []Finding
	// Notes are about what is translated to something else.
	Notes []Finding
}

// tables are what registries.conf has, and neither CRI-O's files nor containerd's.
var tables = regexp.MustCompile(`(?m)^[ \t]*(\[\[[ \t]*registry[ \t]*\]\]|\[[ \t]*registries[ \t]*\.[ \t]*(search|insecure|block)[ \t]*\]|unqualified-search-registries[ \t]*=)`)

// KindOf tells what a file is by its name, or else by what is in it; "" is neither.
func KindOf(name string, text []byte) Kind {
	switch base := filepath.Base(name); {
	case base == string(Conf), filepath.Base(filepath.Dir(name)) == "registries.conf.d" && strings.HasSuffix(base, ".conf"):
		return Conf
	case base == string(Policy):
		return Policy
	}
	begin := bytes.TrimSpace(text)
	switch {
	case bytes.HasPrefix(begin, []byte("{")) && bytes.Contains(begin, []byte(`"default"`)):
		return Policy
	case !bytes.HasPrefix(begin, []byte("{")) && tables.Match(text):
		return Conf
	}
	return ""
}

// Translate translates files of both kinds. A file with one problem says nothing: the
// rest of it could let pass what it holds back.
func Translate(files []File) Result {
	t := &translation{byRegistry: map[string]place{}}
	policies := 0
	for _, f := range files {
		at := reporter{t, f.Name}
		switch KindOf(f.Name, f.Text) {
		case Conf:
			t.conf(at, f.Text)
		case Policy:
			if policies++; policies > 1 {
				at.problem("", "is another policy.json; there can be one", "name one of them")
				continue
			}
			t.policy(at, f.Text)
		}
	}
	slices.SortFunc(t.result.Hosts, func(a, b Hosts) int { return cmp.Compare(a.Registry, b.Registry) })
	return t.result
}

type translation struct {
	result     Result
	byRegistry map[string]place
}

// place is where a registry was seen.
type place struct{ file, key string }

// reporter is about one file.
type reporter struct {
	t    *translation
	file string
}

func (r reporter) problem(key, why, do string) {
	r.t.result.Problems = append(r.t.result.Problems, Finding{File: r.file, Key: key, Why: why, Do: do})
}

func (r reporter) problemAt(line, column int, key, why, do string) {
	r.t.result.Problems = append(r.t.result.Problems, Finding{File: r.file, Line: line, Column: column, Key: key, Why: why, Do: do})
}

func (r reporter) note(key, why string) {
	r.t.result.Notes = append(r.t.result.Notes, Finding{File: r.file, Key: key, Why: why})
}

// host is a registry with or without a port: it becomes the name of a directory and a
// part of an address.
var host = regexp.MustCompile(`^(localhost|[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)+(:[0-9]{1,5})?|[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?:[0-9]{1,5})$`)

// isHost says whether an image's name can begin with this registry.
func isHost(text string) bool { return len(text) <= 255 && host.MatchString(text) }
