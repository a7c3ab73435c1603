package cli

import (
	"errors"
	"io"
	"os"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxCredentials bounds what is read of a file.
const maxCredentials = 64 << 10

// ReadCredentials reads user:password. nil is anonymous.
func ReadCredentials(path string, in io.Reader) (*runtimeapi.AuthConfig, error) {
	if path == "" {
		return nil, nil
	}
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxCredentials))
	if err != nil {
		return nil, err
	}
	user, password, ok := strings.Cut(strings.TrimSpace(string(text)), ":")
	if !ok || user == "" {
		return nil, errors.New("--creds-file: the file must have one line, user:password")
	}
	return &runtimeapi.AuthConfig{Username: user, Password: password}, nil
}
