package registryhosts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestFiles(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no certificate":  {`server = "https://a"`, ""},
		"relative path":   {`ca = "ca.pem"`, "/d/ca.pem"},
		"absolute path":   {`ca = "/etc/ca.pem"`, "/etc/ca.pem"},
		"list":            {`ca = ["a", "b"]`, "/d/a /d/b"},
		"client":          {`client = "both.pem"`, "/d/both.pem"},
		"pairs":           {`client = [["a.cert", "a.key"], ["b.cert", "b.key"]]`, "/d/a.cert /d/a.key /d/b.cert /d/b.key"},
		"tables of hosts": {"ca = \"a\"\n[host.\"https://m\"]\nca = \"b\"\nclient = [\"c\"]\n[host.\"https://n\"]\nca = \"d\"", "/d/a /d/b /d/c /d/d"},
		"not a string":    {`ca = 3`, ""},
		"not TOML":        {`ca = `, ""},
	} {
		got := Files("/d", []byte(c.text))
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		``:                          "",
		`server = "https://a/v2"`:   "a:443",
		`server = "a.example:5000"`: "a.example:5000",
		"[host.\"http://m\"]\n[host.\"https://[::1]:8443\"]\ncapabilities = [\"pull\"]": "m:80 [::1]:8443",
		`server = `: "",
	} {
		test.Equal(t, fmt.Sprint(text), strings.Join(Addresses([]byte(text)), " "), want)
	}
}
