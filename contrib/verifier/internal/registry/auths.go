package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

// auths are the credentials in a docker configuration. Its helpers, which are programs,
// are not run.
type auths struct {
	Auths       map[string]authn.AuthConfig `json:"auths"`
	CredsStore  string                      `json:"credsStore"`
	CredHelpers map[string]string           `json:"credHelpers"`
}

func readAuths(text []byte) (auths, error) {
	a := auths{}
	if len(text) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return auths{}, err
	}
	byHost := map[string]authn.AuthConfig{}
	for key, config := range a.Auths {
		host, is := hostOf(key)
		if !is {
			continue
		}
		if _, twice := byHost[host]; twice {
			return auths{}, fmt.Errorf("auths has more than one entry for %s", host)
		}
		byHost[host] = config
	}
	a.Auths = byHost
	return a, nil
}

// hostOf is the registry of a key: "https://index.docker.io/v1/" is Docker Hub's. A key
// for a part of a registry, as podman has them, is not one.
func hostOf(key string) (host string, is bool) {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, path, _ := strings.Cut(key, "/")
	switch strings.Trim(path, "/") {
	case "", "v1", "v2":
		return policy.Canonical(host), host != ""
	}
	return "", false
}

func (a auths) of(registry string) (authn.Authenticator, error) {
	if config, ok := a.Auths[registry]; ok && config != (authn.AuthConfig{}) {
		return authn.FromConfig(config), nil
	}
	helper := a.CredsStore
	for key, name := range a.CredHelpers {
		if host, is := hostOf(key); is && host == registry {
			helper = name
		}
	}
	if helper != "" {
		return nil, fmt.Errorf("docker_config names the credential helper %q for %s, which is not run; write the credentials into auths", helper, registry)
	}
	return authn.Anonymous, nil
}
