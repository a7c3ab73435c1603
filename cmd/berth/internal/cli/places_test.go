package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestCredentialsOfAPull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	test.Must(t, os.WriteFile(file, []byte("me:secret:with-colon\n"), 0o600))
	for _, from := range []string{file, "-"} {
		got, err := ReadCredentials(from, strings.NewReader("me:secret:with-colon"))
		if err != nil || got.GetUsername() != "me" || got.GetPassword() != "secret:with-colon" {
			t.Errorf("from %s: %v, %v", from, got, err)
		}
	}
	if got, err := ReadCredentials("", nil); got != nil || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	for _, text := range []string{"", "nobody", ":secret"} {
		if _, err := ReadCredentials("-", strings.NewReader(text)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("credentials %q: %v", text, err)
		}
	}
}
