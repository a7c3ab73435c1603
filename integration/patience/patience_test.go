package patience

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]float64{
		"": 1, "1": 1, "7.5": 7.5, "0.2": 1, "-3": 1, "NaN": 1, "fast": 1, "500": Most, "Inf": Most,
	} {
		if got := parse(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}
