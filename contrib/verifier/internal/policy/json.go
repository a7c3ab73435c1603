package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// decodeJSON is as strict as TOML is by itself: a key that is written twice, or with
// other letters, would otherwise replace the first without a word.
func decodeJSON(text []byte, p *Policy) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := checkKeys(d, 0); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows after the policy")
	}
	d = json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(p)
}

const maxDepth = 8

func checkKeys(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("the policy is nested deeper than %d levels", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	opened, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if opened == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key, _ := token.(string)
			if key != strings.ToLower(key) {
				return fmt.Errorf("unknown key %q", key)
			}
			if seen[key] {
				return fmt.Errorf("key %q is written twice", key)
			}
			seen[key] = true
		}
		if err := checkKeys(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
