package podmetrics

import (
	"os"
	"regexp"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// docs/statistics.md names every metric once in its table, and no other.
func TestDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../docs/statistics.md"))(t)
	documented := map[string]int{}
	for _, name := range regexp.MustCompile("`(container_[a-z_]+)`").FindAllSubmatch(text, -1) {
		documented[string(name[1])]++
	}
	for _, d := range Descriptors(everything) {
		if documented[d.GetName()] != 1 {
			t.Errorf("%s is %d times in docs/statistics.md", d.GetName(), documented[d.GetName()])
		}
		delete(documented, d.GetName())
	}
	for name := range documented {
		t.Errorf("docs/statistics.md has %s, which is not a metric", name)
	}
}
