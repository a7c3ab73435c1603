package trust

import (
	"io/fs"
	"strings"
	"testing"
)

func TestCheckHops(t *testing.T) {
	const dir, sticky = fs.ModeDir, fs.ModeSticky
	owners := map[uint32]bool{0: true, 1000: true}
	for name, c := range map[string]struct {
		hop Hop
		// the advice if the hop is configuration, a program, or a file that others
		// install; "~" marks a warning instead of a refusal
		configuration, program, installed string
	}{
		"file":                         {Hop{Mode: 0o644}, "", "", ""},
		"directory":                    {Hop{Mode: dir | 0o755}, "", "", ""},
		"file for all":                 {Hop{Mode: 0o666}, "chmod o-w", "chmod o-w", "chmod o-w"},
		"directory for all":            {Hop{Mode: dir | 0o777}, "chmod o-w", "chmod o-w", "chmod o-w"},
		"sticky directory":             {Hop{Mode: dir | sticky | 0o777}, "", "", ""},
		"sticky directory of drop-ins": {Hop{Mode: dir | sticky | 0o777, Listed: true}, "chmod o-w", "chmod o-w", "chmod o-w"},
		"device for all":               {Hop{Mode: fs.ModeDevice | 0o666}, "", "", ""},
		"another's file":               {Hop{UID: 1001, Mode: 0o644}, "chown root", "chown root", "~chown root"},
		"another's directory":          {Hop{UID: 1001, Mode: dir | 0o755}, "chown root", "chown root", "~chown root"},
		"another's file for all":       {Hop{UID: 1001, Mode: 0o666}, "chmod o-w", "chmod o-w", "chmod o-w"},
		"another's sticky directory":   {Hop{UID: 1001, Mode: dir | sticky | 0o777}, "chown root", "chown root", "~chown root"},
		"a trusted user's file":        {Hop{UID: 1000, Mode: 0o644}, "", "", ""},
		"file for a group":             {Hop{Mode: 0o664}, "chmod g-w", "chmod g-w", "~chmod g-w"},
		"directory for a group":        {Hop{Mode: dir | 0o775}, "chmod g-w", "", "~chmod g-w"},
		"sticky directory for a group": {Hop{Mode: dir | sticky | 0o775}, "", "", ""},
		"programs of a group":          {Hop{Mode: dir | 0o775, Listed: true}, "chmod g-w", "chmod g-w", "~chmod g-w"},
	} {
		t.Run(name, func(t *testing.T) {
			c.hop.Path = "/a/b"
			for p, want := range map[Purpose]string{Configuration: c.configuration, Program: c.program, Installed: c.installed} {
				want, warned := strings.CutPrefix(want, "~")
				refused, warnings := checkHops(p, owners, []Hop{{Path: "/", Mode: dir | 0o755}, c.hop, {Path: "/a/b/c", Mode: 0o644}})
				switch {
				case want == "" && (refused != nil || len(warnings) > 0):
					t.Errorf("purpose %d: %v, %v, want nothing", p, refused, warnings)
				case want == "":
				case warned && (refused != nil || len(warnings) != 1 || !strings.Contains(warnings[0].Error(), want)):
					t.Errorf("purpose %d: %v, warnings %v, want %q", p, refused, warnings, want)
				case !warned && (refused == nil || refused.Path != "/a/b" || !strings.Contains(refused.Error(), want)):
					t.Errorf("purpose %d: %v, want %q", p, refused, want)
				}
				if refused != nil && !strings.Contains(refused.Error(), "(mode ") && !strings.Contains(refused.Error(), "mode 0") &&
					!strings.Contains(refused.Error(), "mode 1") {
					t.Errorf("%v does not name the mode", refused)
				}
			}
		})
	}
}
