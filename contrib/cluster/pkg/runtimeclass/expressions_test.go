package runtimeclass

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "''",
		"plain":                   "'plain'",
		`it's "here" \n {}`:       `'it\'s "here" \\n {}'`,
		"two\nlines\tand\x00more": "'two lines and more'",
		"a\u2028b…ü":              "'a b…ü'",
		"del\x7fand\u0085more":    "'del and more'",
		"\xff":                    "'\ufffd'",
	} {
		test.Equal(t, fmt.Sprintf("%q", text), Quote(text), want)
	}
}

// Each capability that a pod can need has exactly one rule, with an expression.
func TestExpressions(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Expressions() {
		if e.Text == "" || seen[string(e.Capability)] {
			t.Errorf("%s has two rules, or no expression", e.Capability)
		}
		seen[string(e.Capability)] = true
	}
	if len(seen) != len(Asked()) || len(seen) != len(rules) {
		t.Errorf("%d of %d rules have expressions", len(seen), len(rules))
	}
}

// Control characters, as in scripts, are replaced: an API server sends no warning that has them.
func TestRequirementIsPrintable(t *testing.T) {
	for value, want := range map[string]string{
		"x y": "f: x y", "x\ty\r\nz": "f: x y z", "\x1b[1m": "f:  [1m", "a\u0085b": "f: a b", "": "f: ",
		strings.Repeat("ü\n", 200): "f: " + strings.TrimSuffix(strings.Repeat("ü ", 98), " ") + " ü…",
	} {
		test.Equal(t, fmt.Sprintf("%q", value), (Requirement{Field: "f", Value: value}).String(), want)
	}
}
