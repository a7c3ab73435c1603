package registries

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// conf is a registries.conf of version 2.
type conf struct {
	Unqualified       []string          `toml:"unqualified-search-registries"`
	ShortNameMode     string            `toml:"short-name-mode"`
	CredentialHelpers []string          `toml:"credential-helpers"`
	Aliases           map[string]string `toml:"aliases"`
	Registries        []registry        `toml:"registry"`
}

type registry struct {
	Prefix             string   `toml:"prefix"`
	Location           string   `toml:"location"`
	Insecure           bool     `toml:"insecure"`
	Blocked            bool     `toml:"blocked"`
	MirrorByDigestOnly bool     `toml:"mirror-by-digest-only"`
	Mirrors            []mirror `toml:"mirror"`
}

type mirror struct {
	Location       string `toml:"location"`
	Insecure       bool   `toml:"insecure"`
	PullFromMirror string `toml:"pull-from-mirror"`
}

const dockerHub = "docker.io"

// conf translates a registries.conf, all of it or nothing.
func (t *translation) conf(at reporter, text []byte) {
	c, ok := parseConf(at, text)
	if !ok {
		return
	}
	before := len(t.result.Problems)
	at.general(c)
	var all []Hosts
	for i := range c.Registries {
		r := &c.Registries[i]
		if r.Prefix == "" {
			r.Prefix = r.Location
		}
		if r.Location == "" {
			r.Location = r.Prefix
		}
		key := fmt.Sprintf("registry %d (%q)", i+1, r.Prefix)
		if first, twice := t.byRegistry[r.Prefix]; twice {
			at.problem(key, fmt.Sprintf("is also in %s, %s", first.file, first.key), "leave one of them")
			continue
		}
		t.byRegistry[r.Prefix] = place{at.file, key}
		if h := at.registry(key, r); h != nil {
			all = append(all, *h)
		}
	}
	if len(t.result.Problems) == before {
		t.result.Hosts = append(t.result.Hosts, all...)
	}
}

func parseConf(at reporter, text []byte) (c *conf, ok bool) {
	c = &conf{}
	err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(c)
	if err == nil {
		return c, true
	}
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for _, e := range unknown.Errors {
			line, column := e.Position()
			key := strings.Join(e.Key(), ".")
			if strings.HasPrefix(key, "registries.") || key == "registries" {
				at.problemAt(line, column, key, "is of version 1 of registries.conf", "write [[registry]] tables, as version 2 has them")
				continue
			}
			at.problemAt(line, column, key, "is a key that is not known", "correct it, or remove it")
		}
		return nil, false
	}
	line, column := 0, 0
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column = wrong.Position()
	}
	at.problemAt(line, column, "", fmt.Sprintf("cannot be read: %v", err), "correct the file")
	return nil, false
}

// general is about what stands above the registries. berth looks for names without a
// registry on Docker Hub, as Kubernetes' other runtimes do.
func (r reporter) general(c *conf) {
	for _, name := range c.Unqualified {
		if name != dockerHub {
			r.problem("unqualified-search-registries", fmt.Sprintf("names %q; berth looks for names without a registry at %s only", name, dockerHub),
				"write the registry into the images' names, and remove it here")
		}
	}
	if c.ShortNameMode != "" {
		r.note("short-name-mode", "berth looks for names without a registry at "+dockerHub+" only")
	}
	if len(c.Aliases) > 0 {
		r.problem("aliases", "berth has no aliases of names", "write full names into pods, and remove the table")
	}
	for _, helper := range c.CredentialHelpers {
		if helper != "containers-auth.json" {
			r.problem("credential-helpers", fmt.Sprintf("names %q; berth runs no credential helpers", helper), "use the kubelet's credential providers, and remove it here")
		}
	}
}

// registry is nil if there is a problem, or nothing to say.
func (r reporter) registry(key string, of *registry) *Hosts {
	ok := true
	refuse := func(below, why, do string) {
		ok = false
		r.problem(key+"."+below, why, do)
	}
	switch {
	case of.Prefix == "":
		refuse("prefix", "is missing, and so is location", "write one of them")
	case strings.HasPrefix(of.Prefix, "*"):
		refuse("prefix", "is a wildcard; a hosts.toml is for one registry", "write a table for each registry")
	case strings.Contains(of.Prefix, "/"):
		refuse("prefix", "has a path; a hosts.toml is for a whole registry", "write the registry alone, if that is meant")
	case !isHost(of.Prefix):
		refuse("prefix", "is not a registry", "write a host, with its port if it has one")
	}
	if of.Blocked {
		refuse("blocked", "a hosts.toml cannot block a registry", "refuse it by an image verifier, and remove it here")
	}
	r.location(of.Location, "location", refuse)
	for i, m := range of.Mirrors {
		below := fmt.Sprintf("mirror %d", i+1)
		r.location(m.Location, below+".location", refuse)
		switch {
		case m.PullFromMirror != "" && of.MirrorByDigestOnly:
			refuse(below+".pull-from-mirror", "is not valid beside mirror-by-digest-only", "remove one of them")
		case m.PullFromMirror == "tag-only":
			refuse(below+".pull-from-mirror", "is tag-only, which a hosts.toml cannot say", "use all or digest-only")
		case !slices.Contains([]string{"", "all", "digest-only"}, m.PullFromMirror):
			refuse(below+".pull-from-mirror", fmt.Sprintf("is %q", m.PullFromMirror), "use all or digest-only")
		}
	}
	if !ok {
		return nil
	}
	if len(of.Mirrors) == 0 && !of.Insecure && of.Location == of.Prefix {
		r.note(key, "has nothing that berth does not do anyway")
		return nil
	}
	return r.hosts(key, of)
}

func (r reporter) location(location, key string, refuse func(key, why, do string)) {
	server, path, below := strings.Cut(location, "/")
	switch {
	case location == "":
		refuse(key, "is missing", "write the host of the registry")
	case below && isHost(server) && !strings.ContainsAny(path, "\"\\"):
		refuse(key, "leads to another path, which is not translated", fmt.Sprintf("write a hosts.toml by hand, with [host.\"https://%s/v2/%s\"] and override_path = true", server, path))
	case !isHost(location):
		refuse(key, "is not a registry", "write a host, with its port if it has one")
	}
}

// hosts writes the file. An insecure host is asked as containers' tools ask it: by TLS
// with any certificate, then without.
func (r reporter) hosts(key string, of *registry) *Hosts {
	b := &bytes.Buffer{}
	fmt.Fprintf(b, "# from %q, %s\n", r.file, key)
	scheme := "https"
	if of.Insecure {
		scheme = "http"
	}
	fmt.Fprintf(b, "server = %q\n", scheme+"://"+serverOf(of.Location))
	for i, m := range of.Mirrors {
		capabilities := `["pull", "resolve"]`
		if of.MirrorByDigestOnly || m.PullFromMirror == "digest-only" {
			capabilities = `["pull"]`
			r.note(fmt.Sprintf("%s.mirror %d", key, i+1), "tags are resolved by others; what they stand for is then pulled from here, by its digest")
		}
		writeHost(b, m.Location, capabilities, m.Insecure)
	}
	if of.Insecure {
		// The server itself is the last, and without TLS.
		writeHTTPS(b, of.Location, `["pull", "resolve"]`, true)
	}
	return &Hosts{Registry: of.Prefix, Text: b.Bytes()}
}

func writeHost(b *bytes.Buffer, location, capabilities string, insecure bool) {
	writeHTTPS(b, location, capabilities, insecure)
	if insecure {
		fmt.Fprintf(b, "\n[host.%q]\ncapabilities = %s\n", "http://"+serverOf(location), capabilities)
	}
}

func writeHTTPS(b *bytes.Buffer, location, capabilities string, insecure bool) {
	fmt.Fprintf(b, "\n[host.%q]\ncapabilities = %s\n", "https://"+serverOf(location), capabilities)
	if insecure {
		b.WriteString("skip_verify = true\n")
	}
}

// serverOf is where a registry answers.
func serverOf(location string) string {
	if location == dockerHub {
		return "registry-1.docker.io"
	}
	return location
}
