package registry_test

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/image/registry"
)

// ParseAuth checks the credentials that a kubelet sends. A Redactor removes them from messages.
func ExampleParseAuth() {
	creds, err := registry.ParseAuth(&runtimeapi.AuthConfig{Username: "robot", Password: "s3cret-token"})
	if err != nil {
		panic(err)
	}
	fmt.Println(registry.NewRedactor(creds).Text("GET https://robot:s3cret-token@registry.example.com/v2/?sig=abc"))
	// Output:
	// GET https://<redacted>@registry.example.com/v2/?<redacted>
}
