package installer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// configuration has every handler of the other daemon, by the same name, lead to it.
type configuration struct {
	root   nodefs.Root
	at     hook
	beside Beside
	left   map[string]bool
	extra  string
}

type savedConfiguration struct {
	Beside Beside            `json:"beside"`
	Files  []nodefs.Original `json:"files"`
	// Good are the files that berth was last green with, by path, Input and Former that of the
	// step then and the daemon that they lead to.
	Good   map[string][]byte `json:"good,omitempty"`
	Input  string            `json:"input,omitempty"`
	Former Beside            `json:"former,omitzero"`
}

func (*configuration) name() string { return configStep }
func (*configuration) alone() bool  { return false }

func (c *configuration) input() string {
	h := sha256.New()
	for path := range c.files().Sorted() {
		fmt.Fprintf(h, "%s\n%s\n", path, c.files().Content[path])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (c *configuration) files() nodefs.Set {
	f := nodefs.Set{Content: configTexts(c.beside, c.extra), Left: c.left}
	if c.at != nil {
		f.Half = func() { c.at("installer.config.half") }
	}
	return f
}

// configTexts are the files of a berth whose pods are all the other daemon's. With a handler in
// the main file, berth serves no runtime of the node that nobody has named.
func configTexts(b Beside, extra string) map[string][]byte {
	const by = "# Written by berth-installer.\n"
	main := fmt.Appendf(nil, by+"version = 1\ndefault_runtime = %q\n", b.name())
	if b.CgroupDriver != "" {
		main = fmt.Appendf(main, "\n[engine]\ncgroup_driver = %q\n", b.CgroupDriver)
	}
	table := func(name, there string) []byte {
		return fmt.Appendf(nil, "[runtimes.%q]\nendpoint = %q\nremote_handler = %q\n", name, b.Endpoint, there)
	}
	main = append(append(main, '\n'), table(b.name(), "")...)
	texts := map[string][]byte{configFile: main, dropIns + "/README": []byte("The directory stays without drop-ins, too: berth rejects a configuration whose directory is gone.\n")}
	for _, name := range b.Handlers {
		if name != b.name() {
			texts[handlerFile(name)] = append([]byte(by), table(name, name)...)
		}
	}
	if extra != "" {
		texts[extraFile] = []byte(by + strings.TrimRight(extra, "\n") + "\n")
	}
	return texts
}

func handlerFile(handler string) string { return filepath.Join(dropIns, "50-"+handler+".toml") }

func (c *configuration) prepare(_ context.Context, before []byte) ([]byte, error) {
	var saved savedConfiguration
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
	}
	saved.Beside = c.beside
	var err error
	if saved.Files, err = c.files().Prepare(c.root, saved.Files); err != nil {
		return nil, err
	}
	return json.Marshal(saved)
}

// holds implements lasting. What somebody has written into the files stays until they change;
// what this installer has written for other values does not.
func (c *configuration) holds(_ context.Context, text []byte) error {
	var saved savedConfiguration
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	for path := range c.files().Sorted() {
		if c.left[path] {
			continue
		}
		now, err := os.ReadFile(c.root.Path(path))
		if err != nil {
			return err
		}
		n := slices.IndexFunc(saved.Files, func(o nodefs.Original) bool { return o.Path == path })
		if !bytes.Equal(now, c.files().Content[path]) && n >= 0 && slices.Contains(saved.Files[n].Ours, nodefs.Digest(now)) {
			return fmt.Errorf("%s is of other values", path)
		}
	}
	for _, o := range saved.Files {
		if _, wanted := c.files().Content[o.Path]; wanted || c.left[o.Path] {
			continue
		}
		if now, err := os.ReadFile(c.root.Path(o.Path)); err == nil && slices.Contains(o.Ours, nodefs.Digest(now)) {
			return fmt.Errorf("%s is of other values", o.Path)
		}
	}
	return nil
}

func (c *configuration) do(_ context.Context, text []byte) error {
	var saved savedConfiguration
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	return c.files().Do(c.root, saved.Files)
}

// completed implements completing.
func (c *configuration) completed(text []byte) ([]byte, error) {
	var saved savedConfiguration
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, err
	}
	saved.Good, saved.Input, saved.Former = c.files().Content, c.input(), saved.Beside
	return json.Marshal(saved)
}

// configBack writes the files that berth was last green with, if there were newer ones, or some
// are gone. The next run does the step anew.
func (i *Installer) configBack(ctx context.Context, j *journal) (was bool, err error) {
	e := j.entry(configStep)
	var saved savedConfiguration
	if e == nil {
		return false, nil
	}
	if err := json.Unmarshal(e.Saved, &saved); err != nil || saved.Input == "" {
		return false, err
	}
	if saved.Input == e.Input && i.root().There(slices.Collect(maps.Keys(saved.Good))...) == nil {
		return false, nil
	}
	saved.Beside = saved.Former
	if e.Saved, err = json.Marshal(saved); err != nil {
		return false, err
	}
	j.again(ctx, configStep)
	i.at("installer.config.back")
	left := map[string]bool{}
	for _, r := range j.Steps {
		if handler, ok := strings.CutPrefix(r.Name, runtimeStep); ok {
			left[handlerFile(handler)] = true
		}
	}
	return true, nodefs.Set{Content: saved.Good, Left: left}.Do(i.root(), saved.Files)
}

func (c *configuration) undo(_ context.Context, text []byte) error {
	var saved savedConfiguration
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	return c.root.RestoreAll(saved.Files)
}
