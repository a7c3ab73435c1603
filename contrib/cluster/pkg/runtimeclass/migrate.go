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
	old := map[*document][]Class{}
	for _, c := range Classes(objects) {
		if c.Version != "v1" {
			old[c.document] = append(old[c.document], c)
		}
	}
	if len(old) == 0 {
		return m, nil
	}
	var out bytes.Buffer
	done := 0
	for _, c := range Classes(objects) {
		d := c.document
		if len(old[d]) == 0 {
			continue
		}
		fresh, err := m.rewrite(d, old[d], names)
		if err != nil {
			return Migration{}, err
		}
		delete(old, d)
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

func (m *Migration) rewrite(d *document, old []Class, names map[string]string) ([]byte, error) {
	onlyVersion := true
	for _, c := range old {
		to, renamed := names[c.Handler]
		onlyVersion = onlyVersion && c.Version == "v1beta1" && (!renamed || to == c.Handler)
		change := fmt.Sprintf("%s: RuntimeClass %q: %s%s is now %sv1", c.Where(""), c.Name, nodeGroup, c.Version, nodeGroup)
		if renamed && to != c.Handler {
			change += fmt.Sprintf(", handler %q is now %q", c.Handler, to)
		}
		m.Changes = append(m.Changes, change)
	}
	if json.Valid(d.text) {
		return rewriteJSON(d.text, names)
	}
	if onlyVersion {
		return bytes.ReplaceAll(d.text, []byte(nodeGroup+"v1beta1"), []byte(nodeGroup+"v1")), nil
	}
	return rewriteYAML(d, names)
}

// eachClass calls f with every class of a document. What a list says about its
// items is changed in the list, which is then the argument.
func eachClass(at *yaml.Node, inherited *header, f func(*yaml.Node)) {
	if at == nil || at.Kind != yaml.MappingNode {
		return
	}
	h := header{APIVersion: scalar(at, "apiVersion"), Kind: scalar(at, "kind")}
	switch {
	case strings.HasSuffix(h.Kind, "List"):
		if strings.HasPrefix(h.APIVersion, nodeGroup) {
			f(at)
		}
		of := &header{h.APIVersion, strings.TrimSuffix(h.Kind, "List")}
		if _, items := child(at, "items"); items != nil && items.Kind == yaml.SequenceNode {
			for _, item := range items.Content {
				eachClass(item, of, f)
			}
		}
	case h == header{} && inherited != nil && inherited.Kind == "RuntimeClass", h.Kind == "RuntimeClass" && strings.HasPrefix(h.APIVersion, nodeGroup):
		f(at)
	}
}

func scalar(at *yaml.Node, key string) string {
	if _, value := child(at, key); value != nil {
		return value.Value
	}
	return ""
}

func rewriteYAML(d *document, names map[string]string) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(d.text, &root); err != nil {
		return nil, err
	}
	eachClass(root.Content[0], nil, func(c *yaml.Node) { toV1(c, names) })
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

// toV1 changes the node of a class, or of a list of classes.
func toV1(c *yaml.Node, names map[string]string) {
	if _, version := child(c, "apiVersion"); version != nil {
		version.Value = nodeGroup + "v1"
	}
	if _, spec := child(c, "spec"); spec != nil && spec.Kind == yaml.MappingNode {
		for i, key := range c.Content {
			if i%2 == 0 && key.Value == "spec" {
				if len(spec.Content) > 0 {
					// What was said of all of it stays in front of it.
					first := spec.Content[0]
					first.HeadComment = strings.Trim(key.HeadComment+"\n"+first.HeadComment, "\n")
				}
				c.Content = slices.Concat(c.Content[:i], spec.Content, c.Content[i+2:])
				break
			}
		}
		if key, _ := child(c, "runtimeHandler"); key != nil {
			key.Value = "handler"
		}
	}
	_, name := child(c, "handler")
	if strings.HasSuffix(scalar(c, "kind"), "List") {
		return
	}
	to, renamed := names[handlerOf(name)]
	switch {
	case !renamed:
	case name != nil:
		name.SetString(to)
	default:
		c.Content = append(c.Content, text("handler"), text(to))
	}
}

func handlerOf(n *yaml.Node) string {
	if n == nil || n.Tag == "!!null" {
		return ""
	}
	return n.Value
}

func text(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

// rewriteJSON goes by way of YAML's nodes, of which JSON is a special case.
func rewriteJSON(body []byte, names map[string]string) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(body, &root); err != nil {
		return nil, err
	}
	eachClass(root.Content[0], nil, func(c *yaml.Node) { toV1(c, names) })
	var any any
	if err := root.Decode(&any); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(any, "", "  ")
	if err != nil {
		return nil, err
	}
	return out, nil
}
