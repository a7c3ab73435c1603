package runtimeclass

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Migration is a file with its classes in v1.
type Migration struct {
	// Text is the file. Only classes of older versions are changed.
	Text []byte
	// Changes lists the changed classes, a line each.
	Changes []string
	// Findings are mistakes that the API server would reject. Text must not be written if there are
	// any.
	Findings []Finding
}

// Migrate rewrites the RuntimeClasses of a file to node.k8s.io/v1. It keeps comments and order. It
// formats a document anew if that is JSON, has a v1alpha1 class or a renamed handler; else it
// changes only the version. JSON gets sorted keys. names maps handlers that v1 does not allow to
// new ones; the key "" is for classes without a handler.
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

// check collects findings for which the API server would reject the new text.
func (m *Migration) check(file string) error {
	objects, err := Parse(file, m.Text)
	if err != nil {
		return fmt.Errorf("rewrite classes: %w", err)
	}
	for _, f := range Lint(Classes(objects), LintOptions{}) {
		if f.Rule == ruleInvalid {
			if strings.HasPrefix(f.Field, "handler") {
				f.Advice = strings.TrimPrefix(f.Advice+"; ", "; ") + "rename it by --handler OLD=NEW"
			}
			m.Findings = append(m.Findings, f)
		}
	}
	return nil
}

// rewrite returns a document with its classes in v1 and their handlers renamed.
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

// toV1 changes a class of a document, and the versions of the lists around it.
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
			// A comment on spec moves to its first field.
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
