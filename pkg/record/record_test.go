package record

import (
	"errors"

	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/atomicfile"
)

func TestEncode(t *testing.T) {
	for want, v := range map[string]any{
		`{"format":3}`:             struct{}{},
		`{"format":3,"a":{"b":1}}`: map[string]any{"a": map[string]int{"b": 1}},
	} {
		test.Equal(t, want, string(test.Value(Encode(3, v))(t)), want)
	}
	for _, v := range []any{nil, []int{1}, func() {}} {
		test.Fails(t, test.Err(Encode(3, v)), "%T was encoded", v)
	}
}

func TestReadAndWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	type state struct{ Name string }
	var got state
	if err := Read(path, 2, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
	test.Must(t, Write(path, 2, state{"a"}, atomicfile.Durable))
	test.Must(t, Read(path, 2, &got))
	test.Equal(t, "the name", got.Name, "a")
	for content, says := range map[string]string{
		`{"format":3}`: "it has format 3, and this berth reads format 2", `{}`: "it has format 0", `{`: "unexpected end", `[]`: "cannot unmarshal",
	} {
		test.Must(t, os.WriteFile(path, []byte(content), 0o600))
		if err := Read(path, 2, &got); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", content, err)
		}
	}
}
