package registries

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// verifierPolicy is a policy of contrib/verifier, as far as it is written here.
type verifierPolicy struct {
	Default string         `toml:"default"`
	Rules   []verifierRule `toml:"rules,omitempty"`
}

type verifierRule struct {
	Prefix         string   `toml:"prefix"`
	Action         string   `toml:"action"`
	Keys           []string `toml:"keys,omitempty"`
	MatchReference bool     `toml:"match_reference,omitempty"`
}

const (
	accept = "accept"
	refuse = "refuse"
	signed = "signed"
	// maxRules is how many the verifier takes.
	maxRules = 1024
)

// requirements are what an image must satisfy, all of it.
type requirements []json.RawMessage

// policy translates a policy.json, all of it or nothing.
func (t *translation) policy(at reporter, text []byte) {
	before := len(t.result.Problems)
	p := at.readPolicy(text)
	if p == nil || len(t.result.Problems) != before {
		return
	}
	body, err := toml.Marshal(p)
	if err != nil {
		at.problem("", fmt.Sprintf("cannot be written as TOML: %v", err), "report it")
		return
	}
	t.result.Policy = append(fmt.Appendf(nil, "# from %q\n", at.file), body...)
}

func (r reporter) readPolicy(text []byte) *verifierPolicy {
	var p struct {
		Default    requirements                       `json:"default"`
		Transports map[string]map[string]requirements `json:"transports"`
	}
	if err := strict(text, &p); err != nil {
		r.problem("", fmt.Sprintf("cannot be read: %v", err), "correct the file")
		return nil
	}
	docker := p.Transports["docker"]
	byDefault, key := p.Default, "default"
	if own, ok := docker[""]; ok {
		byDefault, key = own, `transports.docker.""`
	}
	to := &verifierPolicy{}
	if rule, ok := r.rule(key, byDefault); ok {
		if to.Default = rule.Action; rule.Action == signed {
			r.problem(key, "asks for signatures of all images; the verifier needs rules for that", "name the registries below transports.docker, and reject the others")
		}
	}
	for _, transport := range slices.Sorted(maps.Keys(p.Transports)) {
		if transport != "docker" {
			r.note("transports."+transport, "is not applicable: berth pulls from registries only, which is docker")
		}
	}
	for _, scope := range slices.Sorted(maps.Keys(docker)) {
		if scope == "" {
			continue
		}
		key := fmt.Sprintf("transports.docker.%q", scope)
		if why, do := wrongScope(scope); why != "" {
			r.problem(key, why, do)
			continue
		}
		if rule, ok := r.rule(key, docker[scope]); ok {
			rule.Prefix = scope
			to.Rules = append(to.Rules, rule)
		}
	}
	if len(to.Rules) > maxRules {
		r.problem("transports.docker", fmt.Sprintf("has more than %d scopes", maxRules), "remove some")
	}
	return to
}

// component is a part of a repository's name.
var component = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)

func wrongScope(scope string) (why, do string) {
	registry, path, below := strings.Cut(scope, "/")
	switch {
	case strings.HasPrefix(scope, "*"):
		return "is a wildcard, which the verifier does not have", "write a scope for each registry"
	case !isHost(registry):
		return "does not begin with a registry", "write it as docker.io/library"
	case strings.Contains(path, "@") || strings.Contains(path, ":"):
		return "is of one tag or digest; the verifier has rules for repositories", "write the repository alone, if that is meant"
	case strings.HasSuffix(registry, ":443") || registry != strings.ToLower(registry):
		return "is not how the verifier writes the registry", "write it in lower case, and without the port 443"
	}
	for part := range strings.SplitSeq(path, "/") {
		if below && !component.MatchString(part) {
			return "is not a repository", "write it as docker.io/library"
		}
	}
	return "", ""
}

// rule translates what a scope requires.
func (r reporter) rule(key string, all requirements) (verifierRule, bool) {
	if len(all) != 1 {
		r.problem(key, fmt.Sprintf("has %d requirements; the verifier has exactly one for a scope", len(all)), "leave the strictest")
		return verifierRule{}, false
	}
	var kind struct {
		Type string `json:"type"`
	}
	// Unknown keys are for those who know the type.
	if err := json.Unmarshal(all[0], &kind); err != nil {
		r.problem(key, fmt.Sprintf("cannot be read: %v", err), "correct the file")
		return verifierRule{}, false
	}
	switch kind.Type {
	case "insecureAcceptAnything":
		return verifierRule{Action: accept}, r.nothingElse(key, all[0])
	case "reject":
		return verifierRule{Action: refuse}, r.nothingElse(key, all[0])
	case "sigstoreSigned":
		return r.sigstore(key, all[0])
	case "signedBy":
		r.problem(key+".type", "is signedBy, a signature of GPG, which the verifier does not know", "sign with cosign, and use sigstoreSigned")
	default:
		r.problem(key+".type", fmt.Sprintf("is %q, which the verifier does not know", kind.Type), "use insecureAcceptAnything, reject or sigstoreSigned")
	}
	return verifierRule{}, false
}

func (r reporter) nothingElse(key string, text []byte) bool {
	var only struct {
		Type string `json:"type"`
	}
	if err := strict(text, &only); err != nil {
		r.problem(key, fmt.Sprintf("cannot be read: %v", err), "correct the file")
		return false
	}
	return true
}

// sigstore translates signatures by keys.
func (r reporter) sigstore(key string, text []byte) (verifierRule, bool) {
	var s map[string]json.RawMessage
	if err := strict(text, &s); err != nil {
		r.problem(key, fmt.Sprintf("cannot be read: %v", err), "correct the file")
		return verifierRule{}, false
	}
	rule, ok := verifierRule{Action: signed}, true
	wrong := func(below, why, do string) {
		ok = false
		r.problem(key+"."+below, why, do)
	}
	var path string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		var err error
		switch name {
		case "type", "signedIdentity":
		case "keyPath":
			err = json.Unmarshal(s[name], &path)
			rule.Keys = append(rule.Keys, path)
		case "keyPaths":
			var paths []string
			err = json.Unmarshal(s[name], &paths)
			rule.Keys = append(rule.Keys, paths...)
		case "keyData", "keyDatas":
			wrong(name, "has a key in the policy", "write the key into a file, and name it in keyPath")
		case "fulcio", "pki", "rekorPublicKeyPath", "rekorPublicKeyPaths", "rekorPublicKeyData", "rekorPublicKeyDatas":
			wrong(name, "is not translated", "write the rule by hand, with identities and trusted_root")
		default:
			wrong(name, "is a key that is not known", "correct it, or remove it")
		}
		if err != nil {
			wrong(name, fmt.Sprintf("cannot be read: %v", err), "correct it")
		}
	}
	if s["keyPath"] != nil && s["keyPaths"] != nil {
		wrong("keyPath", "is not valid beside keyPaths", "remove one of them")
	}
	if ok && len(rule.Keys) == 0 {
		wrong("keyPath", "is missing", "name the file with the public key")
	}
	for _, file := range rule.Keys {
		if !filepath.IsAbs(file) {
			wrong("keyPath", fmt.Sprintf("%q is not an absolute path", file), "write the whole path")
		}
	}
	rule.MatchReference = true
	return rule, r.identity(key+".signedIdentity", s["signedIdentity"]) && ok
}

// identity is about what the signature must name. The verifier compares the
// repository, and the tag if signature and image have one.
func (r reporter) identity(key string, text json.RawMessage) bool {
	identity := struct {
		Type string `json:"type"`
	}{"matchRepoDigestOrExact"}
	if text != nil {
		var all map[string]json.RawMessage
		if err := errors.Join(strict(text, &all), json.Unmarshal(text, &identity)); err != nil {
			r.problem(key, fmt.Sprintf("cannot be read: %v", err), "correct the file")
			return false
		}
	}
	switch identity.Type {
	case "matchRepository":
		r.note(key, "a signature that names a tag must name that of the image too")
	case "matchRepoDigestOrExact":
		r.note(key, "a signature that names no tag, as cosign makes them, counts for all tags of the repository")
	default:
		r.problem(key, fmt.Sprintf("is %q, which the verifier does not know", identity.Type), "use matchRepository or matchRepoDigestOrExact")
		return false
	}
	return r.matchesOnly(key, text)
}

func (r reporter) matchesOnly(key string, text json.RawMessage) bool {
	return text == nil || r.nothingElse(key, text)
}

// strict decodes JSON without keys that are unknown or written twice: of the latter one
// would be lost without a word.
func strict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := once(d, 0); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows after the object")
	}
	d = json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(to)
}

const maxDepth = 32

func once(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it is nested deeper than %d levels", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	opened, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if opened == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key, _ := token.(string)
			// Go takes Type for type, and whoever wrote the file did not.
			if folded := strings.ToLower(key); seen[folded] {
				return fmt.Errorf("key %q is written twice", key)
			}
			seen[strings.ToLower(key)] = true
		}
		if err := once(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
