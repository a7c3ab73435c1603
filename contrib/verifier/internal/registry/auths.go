package registry

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/berth-cri/berth/contrib/verifier/internal/policy"
)

// credentials returns a registry's credentials from a docker configuration, which may be empty. It
// does not run credential helpers, which are programs.
func credentials(text []byte, registry string) (authn.Authenticator, error) {
	var config struct {
		Auths       map[string]authn.AuthConfig `json:"auths"`
		CredsStore  string                      `json:"credsStore"`
		CredHelpers map[string]string           `json:"credHelpers"`
	}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &config); err != nil {
			return nil, fmt.Errorf("read docker_config: %w", err)
		}
	}
	var found []authn.AuthConfig
	for key, auth := range config.Auths {
		if host, is := hostOf(key); is && host == registry {
			found = append(found, auth)
		}
	}
	if len(found) > 1 {
		return nil, fmt.Errorf("read docker_config: auths has more than one entry for %s", registry)
	}
	if len(found) == 1 && found[0] != (authn.AuthConfig{}) {
		return authn.FromConfig(found[0]), nil
	}
	helper := config.CredsStore
	for key, name := range config.CredHelpers {
		if host, is := hostOf(key); is && host == registry {
			helper = name
		}
	}
	if helper != "" {
		return nil, fmt.Errorf("docker_config names the credential helper %q for %s, but helpers are not run; write the credentials into auths", helper, registry)
	}
	return authn.Anonymous, nil
}

// hostOf returns the registry of a key: "https://index.docker.io/v1/" is Docker Hub's. A key for a
// part of a registry, which podman may write, names no registry.
func hostOf(key string) (host string, is bool) {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, path, _ := strings.Cut(key, "/")
	switch strings.Trim(path, "/") {
	case "", "v1", "v2":
		return policy.Canonical(host), host != ""
	}
	return "", false
}
