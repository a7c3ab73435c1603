package runtimeclass

import "testing"

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "''",
		"plain":                   "'plain'",
		`it's "here" \n {}`:       `'it\'s "here" \\n {}'`,
		"two\nlines\tand\x00more": "'two lines and more'",
		"a\u2028b…ü":              "'a b…ü'",
		"\xff":                    "'\ufffd'",
	} {
		if got := Quote(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// Every rule is one that a pod can be about, once, and has an expression.
func TestExpressions(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range Expressions() {
		if e.Text == "" || seen[string(e.Capability)] {
			t.Errorf("%s is there twice, or has no expression", e.Capability)
		}
		seen[string(e.Capability)] = true
	}
	if len(seen) != len(Asked()) || len(seen) != len(rules) {
		t.Errorf("%d of %d rules have expressions", len(seen), len(rules))
	}
}
