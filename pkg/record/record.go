// Package record reads and writes state files as JSON. Each file has the number of its format in
// the field "format". A file of another format is an error, and is never interpreted.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// Write replaces a file by the JSON of v, which must be an object.
func Write(path string, format int, v any, d atomicfile.Durability) error {
	text, err := Encode(format, v)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, text, 0o600, d)
}

// Encode returns the content that Write writes.
func Encode(format int, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	rest, object := bytes.CutPrefix(text, []byte("{"))
	if err == nil && !object {
		err = fmt.Errorf("a record of type %T must be an object", v)
	}
	if err != nil {
		return nil, err
	}
	stamped := strconv.AppendInt([]byte(`{"format":`), int64(format), 10)
	if !bytes.HasPrefix(rest, []byte("}")) {
		stamped = append(stamped, ',')
	}
	return append(stamped, rest...), nil
}

// Read reads a file that Write wrote. The error of a missing file is fs.ErrNotExist.
func Read(path string, format int, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := Decode(text, format, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Decode decodes the content of a file.
func Decode(text []byte, format int, into any) error {
	its, err := FormatOf(text)
	if err != nil {
		return err
	}
	if its != format {
		return fmt.Errorf("it has format %d, and this berth reads format %d", its, format)
	}
	return json.Unmarshal(text, into)
}

// FormatOf returns the format of a file's content, 0 if it has none.
func FormatOf(text []byte) (int, error) {
	var stamped struct {
		Format int `json:"format"`
	}
	err := json.Unmarshal(text, &stamped)
	return stamped.Format, err
}
