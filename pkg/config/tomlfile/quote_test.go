package tomlfile

import (
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func TestJoinKey(t *testing.T) {
	for want, parts := range map[string][]string{
		"engine.root":        {"engine", "root"},
		`runtimes."a.b"`:     {"runtimes", "a.b"},
		`""`:                 {""},
		`"\u0007\u007F\n\t"`: {"\a\x7f\n\t"},
		`"\"\\é"`:            {`"\é`},
	} {
		if got := JoinKey(parts...); got != want {
			t.Errorf("%q: got %s, want %s", parts, got, want)
		}
		if err := toml.Unmarshal([]byte(want+" = 1"), &map[string]any{}); err != nil {
			t.Errorf("%s is not TOML: %v", want, err)
		}
	}
}

func TestInline(t *testing.T) {
	for want, v := range map[string]any{
		`"\u0007"`: "\a", `["a", "b"]`: []string{"a", "b"}, "{}": map[string]any{}, "1.5": 1.5, "true": true,
		`{ "a b" = 1, c = "d" }`: map[string]any{"a b": int64(1), "c": "d"},
	} {
		if got := Inline(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
