package runtimeclass

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Migration is a file with its classes as v1.
type Migration struct {
	// Text is the file. What is no class of an older version is as it was.
	Text []byte
	// Changes are what was rewritten, a line each.
	Changes []string
	// Findings are what keeps the new text from being applied. Whoever has some
	// should not write it anywhere.
	Findings []Finding
}

// Migrate rewrites the RuntimeClasses of a file to node.k8s.io/v1. Comments and order
// stay: of v1beta1 only the version changes; a document with a v1alpha1 class is
// written anew, with its comments. JSON is written anew with sorted keys. Names are new ones of
// handlers that v1 does not allow; the key "" is for classes that name none.
func Migrate(file string, text []byte, names map[string]string) (Migration, error) {
	objects, err := Parse(file, text)
	if err != nil {
		return Migration{}, err
	}
	m := Migration{Text: text}
	all := map[*document][]Class{}
	for _, c := range Classes(objects) {
		all[c.document] = append(all[c.document], c)
	}
	isOld := func(c Class) bool { return c.Version != "v1" }
	if !slices.ContainsFunc(Classes(objects), isOld) {
		return m, nil
	}
	var out bytes.Buffer
	done := 0
	for _, c := range Classes(objects) {
		d := c.document
		if !slices.ContainsFunc(all[d], isOld) {
			continue
		}
		fresh, err := m.rewrite(d, all[d], names)
		if err != nil {
			return Migration{}, err
		}
		delete(all, d)
		out.Write(text[done:d.begin])
		out.Write(fresh)
		done = d.begin + len(d.text)
	}
	out.Write(text[done:])
	m.Text = out.Bytes()
	err = m.check(file)
	return m, err
}

// check holds the new text against the API server's rules.
func (m *Migration) check(file string) error {
	objects, err := Parse(file, m.Text)
	if err != nil {
		return fmt.Errorf("rewrite classes: %w", err)
	}
	for _, f := range Lint(Classes(objects), LintOptions{}) {
		if f.Rule == RuleInvalid {
			if strings.HasPrefix(f.Field, "handler") {
				f.Advice = strings.TrimPrefix(f.Advice+"; ", "; ") + "rename it by --handler OLD=NEW"
			}
			m.Findings = append(m.Findings, f)
		}
	}
	return nil
}

// rewrite is a document with all of its classes, of which v1 ones get new handlers, too.
func (m *Migration) rewrite(d *document, all []Class, names map[string]string) ([]byte, error) {
	isJSON := json.Valid(d.text)
	onlyVersion := !isJSON
	for _, c := range all {
		to, renamed := names[c.Handler]
		if c.Version == "v1" {
			continue
		}
		onlyVersion = onlyVersion && c.Version == "v1beta1" && (!renamed || to == c.Handler)
		change := fmt.Sprintf("%s: RuntimeClass %q: %s%s is now %sv1", c.Where(""), c.Name, nodeGroup, c.Version, nodeGroup)
		if renamed && to != c.Handler {
			change += fmt.Sprintf(", handler %q is now %q", c.Handler, to)
		}
		m.Changes = append(m.Changes, change)
	}
	if onlyVersion {
		return bytes.ReplaceAll(d.text, []byte(nodeGroup+"v1beta1"), []byte(nodeGroup+"v1")), nil
	}
	var root yaml.Node // JSON is a special case of YAML
	if err := yaml.Unmarshal(d.text, &root); err != nil {
		return nil, err
	}
	for _, c := range all {
		toV1(root.Content[0], c, names)
	}
	if isJSON {
		var value any
		if err := root.Decode(&value); err != nil {
			return nil, err
		}
		return json.MarshalIndent(value, "", "  ")
	}
	var out bytes.Buffer
	if bytes.HasPrefix(d.text, []byte("---")) {
		out.WriteString("---\n")
	}
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&root); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

// toV1 changes a class of a document, and the versions of the lists that it is in.
func toV1(at *yaml.Node, c Class, names map[string]string) {
	setVersion(at)
	for _, step := range steps(c.Path) {
		_, at = child(at, step)
		setVersion(at)
	}
	if at == nil || at.Kind != yaml.MappingNode {
		return
	}
	if key, spec := child(at, "spec"); spec != nil && spec.Kind == yaml.MappingNode {
		if len(spec.Content) > 0 {
			// What was said of all of it stays in front of it.
			first := spec.Content[0]
			first.HeadComment = strings.Trim(key.HeadComment+"\n"+first.HeadComment, "\n")
		}
		i := slices.Index(at.Content, key)
		at.Content = slices.Replace(at.Content, i, i+2, spec.Content...)
		if key, _ := child(at, "runtimeHandler"); key != nil {
			key.Value = "handler"
		}
	}
	to, renamed := names[c.Handler]
	if !renamed {
		return
	}
	_, name := child(at, "handler")
	if name == nil {
		name = &yaml.Node{}
		at.Content = append(at.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "handler"}, name)
	}
	name.SetString(to)
}

func setVersion(at *yaml.Node) {
	if _, version := child(at, "apiVersion"); version != nil && strings.HasPrefix(version.Value, nodeGroup) {
		version.Value = nodeGroup + "v1"
	}
}
