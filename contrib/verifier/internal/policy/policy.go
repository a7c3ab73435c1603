// Package policy decides which images are accepted, and by which signatures:
//
//	p, err := policy.Parse(text)          // strict: an unknown key is an error
//	image, err := policy.ParseImage(name) // a normalized name
//	rule := p.For(image)                  // the most specific rule, else the default
//
// It is pure: it reads no file and queries no registry.
package policy

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
	strictjson "sigs.k8s.io/json"
)

// Action is the treatment of an image.
type Action string

const (
	// Accept accepts the image without a signature.
	Accept Action = "accept"
	// Refuse always refuses the image.
	Refuse Action = "refuse"
	// Signed accepts the image if it has a signature that the rule requires.
	Signed Action = "signed"
)

// Limits of a policy: each rule costs time at each pull.
const (
	// MaxSize is the size limit of a policy, in bytes.
	MaxSize    = 1 << 20
	maxRules   = 1024
	maxSigners = 64
)

// Policy is a policy file.
type Policy struct {
	// Default is for images that no rule matches: Accept or Refuse.
	Default Action `toml:"default" json:"default"`
	// DockerConfig is a file with credentials for registries; empty means none.
	DockerConfig string `toml:"docker_config" json:"docker_config"`
	// PlainHTTP are the registries that may be queried without TLS.
	PlainHTTP []string `toml:"plain_http" json:"plain_http"`
	Rules     []Rule   `toml:"rules" json:"rules"`
}

// Rule applies to images with a name that begins with its prefix.
type Rule struct {
	// Prefix is a registry, or a registry with the first components of a repository.
	Prefix string `toml:"prefix" json:"prefix"`
	Action Action `toml:"action" json:"action"`
	// Keys are files with public keys; a signature by one of them suffices.
	Keys []string `toml:"keys" json:"keys"`
	// Identities sign without a key; a signature by one of them suffices.
	Identities []Identity `toml:"identities" json:"identities"`
	// TrustedRoot is sigstore's trusted_root.json, which identities need.
	TrustedRoot string `toml:"trusted_root" json:"trusted_root"`
	// MatchReference accepts only signatures that name the image's repository.
	MatchReference bool `toml:"match_reference" json:"match_reference"`
}

// Identity is the signer in a certificate, without a key.
type Identity struct {
	Issuer  string `toml:"issuer" json:"issuer"`
	Subject string `toml:"subject" json:"subject"`
}

// Parse parses a policy in TOML, or in JSON if it begins with a brace. The error has all mistakes.
func Parse(text []byte) (*Policy, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("the policy has more than %d bytes", MaxSize)
	}
	p := &Policy{}
	if err := decode(text, p); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return p, nil
}

func decode(text []byte, p *Policy) error {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		// TOML is strict by itself. In JSON, a duplicate key or one with other letter case would
		// otherwise silently replace the first key.
		strict, err := strictjson.UnmarshalStrict(text, p)
		return errors.Join(append(strict, err)...)
	}
	err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(p)
	if missing, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var all []error
		for _, e := range missing.Errors {
			line, _ := e.Position()
			all = append(all, fmt.Errorf("line %d: unknown key %s", line, strings.Join(e.Key(), ".")))
		}
		return errors.Join(all...)
	}
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := wrong.Position()
		return fmt.Errorf("line %d: %w", line, err)
	}
	return err
}

func (p *Policy) check() error {
	var all []error
	wrong := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if p.Default != Accept && p.Default != Refuse {
		wrong(`default is %q; set it to "accept" or "refuse"`, p.Default)
	}
	if p.DockerConfig != "" && !filepath.IsAbs(p.DockerConfig) {
		wrong("docker_config %q is not an absolute path", p.DockerConfig)
	}
	for i, host := range p.PlainHTTP {
		registry, path, err := parsePrefix(host)
		if err != nil || path != "" {
			wrong("plain_http: %q is not a registry", host)
			continue
		}
		p.PlainHTTP[i] = registry
	}
	if len(p.Rules) > maxRules {
		wrong("the policy has %d rules; the most is %d", len(p.Rules), maxRules)
	}
	seen := map[string]bool{}
	for i := range p.Rules {
		r := &p.Rules[i]
		written := r.Prefix
		for _, err := range r.check() {
			wrong("rule %d (%q): %w", i+1, written, err)
		}
		if seen[r.Prefix] {
			wrong("rule %d (%q): another rule has this prefix", i+1, written)
		}
		seen[r.Prefix] = true
	}
	return errors.Join(all...)
}

// check also normalizes the prefix.
func (r *Rule) check() (all []error) {
	wrong := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	registry, path, err := parsePrefix(r.Prefix)
	if err != nil {
		wrong("%w", err)
	} else {
		r.Prefix = strings.TrimSuffix(registry+"/"+path, "/")
	}
	switch r.Action {
	case Accept, Refuse:
		if len(r.Keys) > 0 || len(r.Identities) > 0 || r.TrustedRoot != "" || r.MatchReference {
			wrong(`keys, identities, trusted_root and match_reference are for action = "signed"`)
		}
	case Signed:
		all = append(all, r.checkSigners()...)
	default:
		wrong(`action is %q; set it to "accept", "refuse" or "signed"`, r.Action)
	}
	return all
}

func (r *Rule) checkSigners() (all []error) {
	wrong := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	switch keys, identities := len(r.Keys), len(r.Identities); {
	case keys == 0 && identities == 0:
		wrong("a signed rule needs keys or identities")
	case keys > 0 && identities > 0:
		wrong("a rule has keys or identities, not both")
	case keys > maxSigners || identities > maxSigners:
		wrong("a rule has at most %d keys or identities", maxSigners)
	}
	for _, key := range r.Keys {
		if !filepath.IsAbs(key) {
			wrong("key %q is not an absolute path", key)
		}
	}
	for _, i := range r.Identities {
		if i.Issuer == "" || i.Subject == "" {
			wrong("an identity needs issuer and subject")
		}
	}
	switch {
	case len(r.Identities) == 0 && r.TrustedRoot != "":
		wrong("trusted_root is for identities")
	case len(r.Identities) > 0 && !filepath.IsAbs(r.TrustedRoot):
		wrong("identities need trusted_root, the absolute path of a trusted_root.json")
	}
	if r.MatchReference && len(r.Identities) > 0 {
		wrong("match_reference is for keys: signatures of identities name no repository")
	}
	return all
}

// For returns the rule of an image: the one with the longest prefix of whole components, else the
// default with an empty prefix.
func (p *Policy) For(image Image) Rule {
	best, name := Rule{Action: p.Default}, image.Repository()
	for _, r := range p.Rules {
		under := name == r.Prefix || strings.HasPrefix(name, r.Prefix+"/")
		if under && len(r.Prefix) > len(best.Prefix) {
			best = r
		}
	}
	return best
}
