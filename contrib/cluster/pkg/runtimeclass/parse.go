// Package runtimeclass checks RuntimeClasses as a cluster would, without one:
//
//	objects, err := runtimeclass.Parse("classes.yaml", text) // the error has file, line and document of each mistake
//	findings := runtimeclass.Lint(runtimeclass.Classes(objects), runtimeclass.LintOptions{Handlers: handlers})
//	admission := runtimeclass.Admit(pod, classes)             // the pod as the API server admits it
//	verdict := runtimeclass.Fit(pod, handler)
//
// It is pure: it uses no disk, no cluster and no daemon. Messages of the API server are used
// verbatim, so that findings here equal those of a cluster; integration/runtimeclass compares both.
package runtimeclass

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	strictjson "sigs.k8s.io/json"
)

// Object is one object of a file.
type Object struct {
	Source
	APIVersion string
	Kind       string
	Namespace  string
	// Name ends with … if the API server generates the rest.
	Name string

	// Class is set for RuntimeClasses, Pod for pods and workloads. Other objects have neither.
	Class *Class
	Pod   *Pod
}

// String returns a display name, such as "Deployment web/front".
func (o Object) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return strings.TrimSpace(o.Kind + " " + name)
}

// Class is a RuntimeClass of any version, in the form of v1.
type Class struct {
	Source
	// Version is the manifest's version: v1, v1beta1 or v1alpha1.
	Version string
	*nodev1.RuntimeClass
}

// field converts the path of a field in v1 to the path in the manifest.
func (c Class) field(name string) string {
	if c.Version != "v1alpha1" || name == "apiVersion" || strings.HasPrefix(name, "metadata") {
		return name
	}
	if rest, ok := strings.CutPrefix(name, "handler"); ok {
		return "spec.runtimeHandler" + rest
	}
	return "spec." + name
}

// Pod is a pod as its controller would create it.
type Pod struct {
	Source
	// Owner is the object that the pod is generated from: "Deployment web".
	Owner string
	*corev1.Pod
}

// maxDepth is the limit of nested lists.
const maxDepth = 4

// Parse reads every object of a file: YAML or JSON, one document or many, including lists. The
// error is Problems with all mistakes; objects without mistakes are returned beside it. file is
// only for error messages.
func Parse(file string, text []byte) ([]Object, error) {
	all, err := documents(file, text)
	if err != nil {
		return nil, err
	}
	p := &parser{}
	for i, d := range all {
		s := Source{File: file, Document: i + 1, document: d}
		body, wrong := d.json(s)
		if wrong != nil {
			p.problems = append(p.problems, *wrong)
			continue
		}
		if string(bytes.TrimSpace(body)) != "null" {
			p.read(s, body, header{}, 0)
		}
	}
	if len(p.problems) > 0 {
		return p.objects, p.problems
	}
	return p.objects, nil
}

// Read reads one object from an API server. Unknown fields are not mistakes, because the server may
// be newer.
func Read(where string, body []byte) (Object, error) {
	var h header
	if err := json.Unmarshal(body, &h); err != nil {
		return Object{}, fmt.Errorf("%s: %w", where, err)
	}
	o, problems := decode(Source{File: where}, h, body)
	if len(problems) > 0 && o.Class == nil && o.Pod == nil {
		return Object{}, problems
	}
	return o, nil
}

// Classes returns the RuntimeClasses among objects.
func Classes(objects []Object) []Class {
	var all []Class
	for _, o := range objects {
		if o.Class != nil {
			all = append(all, *o.Class)
		}
	}
	return all
}

type parser struct {
	objects  []Object
	problems Problems
}

func (p *parser) fail(s Source, format string, args ...any) {
	p.problems = append(p.problems, Problem{Source: s, Text: fmt.Sprintf(format, args...)})
}

// header is the type of an object.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// read reads an object; inherited is the type of items of the enclosing list.
func (p *parser) read(s Source, body []byte, inherited header, depth int) {
	var h header
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(body, &h); err != nil {
		p.fail(s, "is not a Kubernetes object: must be a mapping with apiVersion and kind (%v)", plain(err))
		return
	}
	if h == (header{}) {
		h = inherited
	}
	var lacks []string
	if h.APIVersion == "" {
		lacks = append(lacks, "apiVersion")
	}
	if h.Kind == "" {
		lacks = append(lacks, "kind")
	}
	if len(lacks) > 0 {
		p.fail(s, "is not a Kubernetes object: missing %s", strings.Join(lacks, " and "))
		return
	}
	if strings.HasSuffix(h.Kind, "List") {
		p.readList(s, body, h, depth)
		return
	}
	object, problems := decode(s, h, body)
	if len(problems) > 0 {
		p.problems = append(p.problems, problems...)
		return
	}
	p.objects = append(p.objects, object)
}

func (p *parser) readList(s Source, body []byte, h header, depth int) {
	var list struct {
		header
		Metadata json.RawMessage   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if depth >= maxDepth {
		p.fail(s, "has lists nested more than %d deep", maxDepth)
		return
	}
	problems, read := unmarshal(s, body, &list, "a "+h.Kind)
	p.problems = append(p.problems, problems...)
	if !read {
		return
	}
	items := header{}
	if kind := strings.TrimSuffix(h.Kind, "List"); kind != "" {
		items = header{h.APIVersion, kind}
	}
	for i, item := range list.Items {
		at := s
		at.Path = join(s.Path, fmt.Sprintf("items[%d]", i))
		p.read(at, item, items, depth+1)
	}
}

// unmarshal parses a value and reports whether it could. The problems are unknown keys, or the one
// mistake that prevented parsing.
func unmarshal(s Source, body []byte, into any, what string) (problems Problems, read bool) {
	strict, err := strictjson.UnmarshalStrict(body, into)
	if err != nil {
		p := Problem{Source: s, Text: fmt.Sprintf("is not %s: %v", what, plain(err))}
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			p.Field = wrong.Field
		}
		return Problems{p}, false
	}
	for _, err := range strict {
		p := Problem{Source: s, Text: err.Error()}
		if of, ok := errors.AsType[strictjson.FieldError](err); ok {
			p.Field = of.FieldPath()
		}
		problems = append(problems, p)
	}
	return problems, true
}

// plain replaces Go's terms in an error by those of YAML.
func plain(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	kind := strings.NewReplacer("array", "list", "object", "mapping").Replace(wrong.Value) // as in YAML
	if wrong.Field == "" {
		return fmt.Errorf("it is a %s", kind)
	}
	return fmt.Errorf("%s cannot be a %s", wrong.Field, kind)
}
