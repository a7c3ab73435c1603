package main

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/contrib/cluster/pkg/installer"
)

// TestRuntimeFlag: what is wrong is said in words of the flag, and a version is what was typed.
func TestRuntimeFlag(t *testing.T) {
	for name, c := range map[string]struct {
		text, refused string
		want          installer.Runtime
	}{
		"as documented": {
			text: `{handler: crun, kind: crun, version: "1.24", source: /usr/bin/crun}`,
			want: installer.Runtime{Handler: "crun", Kind: "crun", Version: "1.24", Source: "/usr/bin/crun"},
		},
		"a version of three parts": {
			text: `{handler: kata, kind: kata, version: 3.20.0, source: /opt/kata}`,
			want: installer.Runtime{Handler: "kata", Kind: "kata", Version: "3.20.0", Source: "/opt/kata"},
		},
		// YAML reads a number, of which 1.1 is left.
		"a version without quotes": {text: `{handler: crun, kind: crun, version: 1.10, source: /usr/bin/crun}`, refused: "version is not text; put it in quotes"},
		"a date for a version":     {text: `{handler: g, kind: runsc, version: 20261101, source: /x}`, refused: "put it in quotes"},
		"no table":                 {text: "crun", refused: "write {handler: crun, kind: crun, version: "},
		"no space":                 {text: "{handler:crun}", refused: `unknown key "handler:crun"; `},
		"a misspelt key":           {text: `{handler: g, kind: runsc, version: "1", sorce: /x}`, refused: `unknown key "sorce"; `},
		"no YAML":                  {text: "{handler: ", refused: "write {handler: crun, kind: crun, version: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseRuntime(c.text)
			if c.refused == "" && err != nil {
				t.Fatal(err)
			}
			if c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused) || strings.Contains(err.Error(), "JSON")) {
				t.Errorf("got %v, want %s", err, c.refused)
			}
			if got != c.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}
