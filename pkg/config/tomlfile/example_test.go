package tomlfile_test

import (
	"fmt"
	"reflect"
	"time"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

func Example() {
	doc := tomlfile.Parse("/etc/app.toml", []byte("wait = 90\nname = \"a\"\nname = \"b\"\n[lgo]\n"))
	var settings struct {
		Wait time.Duration `toml:"wait"`
		Name string        `toml:"name"`
	}
	d := tomlfile.Decoder{Doc: doc, Unknown: func(_, _ string, known []string) (message, suggestion string) {
		return fmt.Sprintf("unknown key; known are %v", known), ""
	}}
	d.Table("", "", doc.Values, reflect.ValueOf(&settings).Elem())
	fmt.Println(settings.Name, doc.Origins["name"])
	fmt.Println(append(doc.Problems, d.Problems...).Sorted())
	// Output:
	// a /etc/app.toml:2
	// /etc/app.toml:1:1: wait: must be a duration with its unit in quotes, such as "90s" or "4h", not an integer (did you mean "90s"?)
	// /etc/app.toml:3:1: name: is already set at line 2; keep one of the two
	// /etc/app.toml:4:2: lgo: unknown key; known are [wait name]
}
