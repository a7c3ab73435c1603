package registry

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// Pulls share a download only if they have the same credentials.
func TestKeysOfCredentials(t *testing.T) {
	seen := map[string]string{}
	for name, auth := range map[string]*runtimeapi.AuthConfig{
		"no credentials": nil, "password": {Username: "u", Password: "secret"}, "other password": {Username: "u", Password: "secret2"},
		"other user": {Username: "v", Password: "secret"}, "token": {IdentityToken: "secret"}, "with a server": {Username: "u", Password: "secret", ServerAddress: "r"},
	} {
		c := test.Value(ParseAuth(auth))(t)
		key := c.Key()
		if other, there := seen[key]; there || strings.Contains(key, "secret") || (key == "") != (auth == nil) {
			t.Errorf("%s: the key %q is also that of %q, is empty, or contains a secret", name, key, other)
		}
		seen[key] = name
		again, err := ParseAuth(auth)
		if err != nil || again.Key() != key {
			t.Errorf("%s: the same credentials have another key: %v", name, err)
		}
	}
}
