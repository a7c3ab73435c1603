package dropin

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

func TestReadsWhatItWrote(t *testing.T) {
	settings := []Setting{
		{Key: "options.BinaryName", Value: `"/bin/x"`},
		{Key: `options."a b"`, Value: `{deep = [1, "two"]}`},
		{Key: "pod_annotations", Value: `["a.*"]`},
		{Key: "runtime_path", Value: `"/bin/shim"`},
	}
	text := test.Value(Write("one\ntwo", "kata", settings))(t)
	want := "# one\n# two\n[runtimes.kata]\noptions.BinaryName = \"/bin/x\"\noptions.\"a b\" = {deep = [1, \"two\"]}\npod_annotations = [\"a.*\"]\nruntime_path = \"/bin/shim\"\n"
	if string(text) != want {
		t.Errorf("got\n%s", text)
	}
	back, err := Read(text, "kata")
	settings[1] = Setting{Key: `options."a b".deep`, Value: `[1, "two"]`}
	settings[0], settings[1] = settings[1], settings[0]
	if err != nil || !reflect.DeepEqual(back, settings) {
		t.Errorf("read back: %v\n%+v", err, back)
	}
}

func TestWriteTakesNoSmuggledLines(t *testing.T) {
	for _, s := range []Setting{
		{Key: "a", Value: "1\n[server]"}, {Key: "a", Value: ""}, {Key: "a", Value: "x"}, {Key: "a", Value: "1\rb = 2"},
		{Key: "a = 1 #", Value: "1"}, {Key: "a\nb", Value: "1"}, {Key: "", Value: "1"}, {Key: "a.", Value: "1"},
		{Key: `"a\n"`, Value: "1"}, {Key: "]", Value: "1"}, {Key: "a", Value: "1]\n"},
	} {
		if text, err := Write("", "x", []Setting{s}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v\n%s", s, err, text)
		}
	}
	test.Is(t, test.Err(Write("", "x", []Setting{{Key: "a", Value: tomlfile.Quote(strings.Repeat("x", hostfiles.MaxFileSize))}})), errdefs.IsInvalidArgument, "a huge value")
}

func TestReadRefusesOtherFiles(t *testing.T) {
	for _, text := range []string{
		"", "[runtimes.other]\n", "[runtimes.x]\n[runtimes.other]\n", "[runtimes.x]\n[server]\n", "version = 1\n[runtimes.x]\n", "[runtimes]\nx = 1\n", "x",
	} {
		test.Is(t, test.Err(Read([]byte(text), "x")), errdefs.IsFailedPrecondition, "%q", text)
	}
}

func TestValue(t *testing.T) {
	for text, want := range map[string]string{
		"/usr/bin/runc": `"/usr/bin/runc"`, "true": "true", "3": "3", `"3"`: `"3"`, "native": `"native"`, `["a", "b"]`: `["a", "b"]`,
		"": `""`, "a\nb": `"a\nb"`, "90s": `"90s"`, "'x'": "'x'",
	} {
		test.Equal(t, fmt.Sprintf("Value(%q)", text), Value(text), want)
	}
}

func TestParse(t *testing.T) {
	got, err := Parse([]byte("# comment\nb = 1\n[options]\nX = true\n"))
	if want := []Setting{{Key: "b", Value: "1"}, {Key: "options.X", Value: "true"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	test.Is(t, test.Err(Parse([]byte("b ="))), errdefs.IsInvalidArgument, "invalid TOML")
}

func FuzzWrite(f *testing.F) {
	f.Add("runtime_path", `"/x"`)
	f.Add(`a."b c"`, "1 # x")
	f.Fuzz(func(t *testing.T, key, value string) {
		text, err := Write("by a test", "x", []Setting{{Key: key, Value: value}})
		if err != nil {
			return
		}
		var values map[string]any
		if err := toml.Unmarshal(text, &values); err != nil {
			t.Skip() // Write checks only the syntax of keys and values; Load refuses the rest
		}
		if _, err := Read(text, "x"); err != nil {
			t.Errorf("%q = %q sets more than this key:\n%s\n%v", key, value, text, err)
		}
	})
}
