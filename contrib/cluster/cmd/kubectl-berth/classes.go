package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/manifests"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

func (w *classWork) generate() error {
	o := runtimeclass.GenerateOptions{AnyNode: w.flags.anyNode, NoCapacity: w.flags.noCapacity}
	for _, text := range w.flags.tolerations {
		t, err := runtimeclass.ParseToleration(text)
		if err != nil {
			return wrong(fmt.Errorf("--toleration: %w", err))
		}
		o.Tolerations = append(o.Tolerations, t)
	}
	var there *cluster.State
	if w.flags.handlers == "" {
		s, err := w.connect()
		if err != nil {
			return err
		}
		if there, err = s.state(w.ctx); err != nil {
			return err
		}
	}
	handlers, err := w.handlers(there)
	if err != nil {
		return err
	}
	chosen, err := w.choose(handlers)
	if err != nil {
		return err
	}
	var all []runtimeclass.Generated
	for _, h := range chosen {
		g := runtimeclass.Generate(h, o)
		if there != nil {
			cluster.KeepKnown(g.RuntimeClass, there.Classes)
			if cluster.KeepOverhead(g.RuntimeClass, there.Classes) {
				g.Note = "overhead: that of the class in the cluster; --measurements would change it"
			}
		}
		all = append(all, g)
	}
	// Nothing is printed before all of it is there.
	text, err := written(all, w.flags.output)
	if err != nil {
		return err
	}
	if there != nil {
		w.lacks(all, there.Nodes)
	} else {
		w.needs(all)
	}
	_, err = w.Out.Write(text)
	return err
}

// lacks notes which generated classes have pods that would stay pending in a cluster, and why.
func (w *classWork) lacks(all []runtimeclass.Generated, nodes []corev1.Node) {
	for _, g := range all {
		if cluster.Unlabelled(g.RuntimeClass, nodes) {
			w.note("class %s selects nodes by %s, which no node has yet: its pods stay pending until one does; --any-node omits the selector", g.Name, labels.Set(g.Scheduling.NodeSelector))
		}
		if cluster.Uncounted(g.RuntimeClass, nodes) {
			w.note("pods of class %s are counted, and no node has their resource yet: they stay pending until berth-controller runs; --no-capacity omits it", g.Name)
		}
	}
}

// needs notes what a cluster must run for pods of generated classes.
func (w *classWork) needs(all []runtimeclass.Generated) {
	switch g := all[0]; {
	case runtimeclass.Counted(g.RuntimeClass):
		w.note("pods of these classes stay pending unless Node Feature Discovery and berth-controller run; without the controller use --no-capacity, without both also --any-node")
	case !w.flags.anyNode:
		w.note("pods of these classes stay pending unless Node Feature Discovery runs; without it label nodes by \"berth handlers --print-labels\", or use --any-node")
	}
}

// choose are the handlers that were named, else those that take pods.
func (w *classWork) choose(handlers []runtimeclass.Handler) ([]runtimeclass.Handler, error) {
	chosen, passed, err := runtimeclass.Choose(handlers, w.args)
	if err != nil {
		return nil, wrong(err)
	}
	for _, h := range passed {
		w.note("handler %s is %s; no class is generated", h.Name, h.State)
	}
	if len(chosen) == 0 {
		return nil, found("no handler accepts pods; name one to generate its class anyway")
	}
	return chosen, nil
}

// written are classes as kubectl reads them: documents with a comment, or a list.
func written(all []runtimeclass.Generated, form string) ([]byte, error) {
	if form == "json" {
		list := nodev1.RuntimeClassList{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClassList"}}
		for _, g := range all {
			list.Items = append(list.Items, *g.RuntimeClass)
		}
		text, err := json.MarshalIndent(list, "", "  ")
		return append(text, '\n'), err
	}
	var b bytes.Buffer
	for i, g := range all {
		text, err := yaml.Marshal(g.RuntimeClass)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "# %s\n%s", g.Note, text)
	}
	return b.Bytes(), nil
}

// linted is what lint prints.
type linted struct {
	Classes  int                    `json:"classes"`
	Errors   int                    `json:"errors"`
	Warnings int                    `json:"warnings"`
	Findings []runtimeclass.Finding `json:"findings"`
}

func (w *classWork) lint() error {
	o, err := w.lintOptions()
	if err != nil {
		return err
	}
	// What can be read is looked at, also beside what cannot.
	objects, mistakes := w.files.Objects(w.args)
	if err := w.want(objects, "RuntimeClass", manifests.IsClass); err != nil && mistakes == nil {
		return err
	}
	classes := runtimeclass.Classes(objects)
	l := linted{Classes: len(classes), Findings: []runtimeclass.Finding{}}
	for _, f := range runtimeclass.Lint(classes, o) {
		if f.Severity == runtimeclass.Error {
			l.Errors++
		} else {
			l.Warnings++
		}
		l.Findings = append(l.Findings, f)
	}
	if err := output.Encode(w.Out, w.flags.output, l, func(to io.Writer) error { return printFindings(to, l.Findings) }); err != nil {
		return err
	}
	if slices.ContainsFunc(classes, func(c runtimeclass.Class) bool { return runtimeclass.Counted(c.RuntimeClass) }) {
		w.note("pods of classes with a resource handler.NAME.pods stay pending unless berth-controller runs; \"kubectl berth audit\" shows whether nodes have it")
	}
	if mistakes != nil {
		return wrong(mistakes)
	}
	if l.Errors > 0 || w.flags.strict && l.Warnings > 0 {
		return found("%s and %s in %s", output.Count(l.Errors, "error", "errors"), output.Count(l.Warnings, "warning", "warnings"), output.Count(l.Classes, "RuntimeClass", "RuntimeClasses"))
	}
	return nil
}

func (w *classWork) lintOptions() (runtimeclass.LintOptions, error) {
	var o runtimeclass.LintOptions
	var err error
	switch {
	case w.flags.live && w.flags.handlers != "":
		return o, wrong(errors.New("--live and --handlers cannot be combined"))
	case w.flags.live:
		var s *server
		if s, err = w.connect(); err != nil {
			return o, err
		}
		there := &cluster.State{}
		if there.Nodes, err = s.nodes(w.ctx); err != nil {
			return o, err
		}
		o.Handlers, err = w.handlers(there)
	case w.flags.handlers != "":
		o.Handlers, err = w.handlers(nil)
	case w.flags.measurements != "":
		o.MeasuredOnly = true
		o.Handlers, err = w.inventory(w.flags.measurements)
	}
	if err != nil {
		return o, err
	}
	o.Live, err = w.classesOf(w.flags.against, "against")
	return o, err
}

// printFindings writes them as compilers do: no table has the room for them.
func printFindings(w io.Writer, all []runtimeclass.Finding) error {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintln(&b, f)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
