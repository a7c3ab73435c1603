package runtimeclass

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Expression is a rule for an API server: a list of the fields that ask for a
// capability, as "field: value", the first of which counts. It uses variables.pod,
// variables.asking, which is the pod unless only containers are asked, and
// variables.containers, which is ContainersExpression or DebugContainersExpression.
type Expression struct {
	Capability capability.Name
	Text       string
}

// Expressions are all rules in CEL, in their order.
func Expressions() []Expression {
	var all []Expression
	for _, r := range rules {
		all = append(all, Expression{r.capability, r.expression()})
	}
	return all
}

func (r rule) expression() string {
	var parts []string
	for _, a := range r.pod {
		parts = append(parts, a.expression(askingSite))
	}
	if len(r.containers) > 0 {
		var each []string
		for _, a := range r.containers {
			each = append(each, a.expression(containerSite))
		}
		parts = append(parts, fmt.Sprintf("variables.containers.map(c, %s).filter(l, l.size() > 0).map(l, l[0])", strings.Join(each, " + ")))
	}
	return strings.Join(parts, " + ")
}

// ContainersExpression is all containers with which variables.pod is created, with where
// they are.
func ContainersExpression() string {
	var lists []string
	for _, list := range containerLists {
		if list != debugContainers {
			lists = append(lists, containersExpression(list, ""))
		}
	}
	return strings.Join(lists, " + ")
}

// DebugContainersExpression is the ephemeral containers of variables.pod that oldObject does
// not have, with where they are.
func DebugContainersExpression() string {
	return "[dyn(oldObject).?spec.?" + debugContainers + ".orValue([]).map(c, c.name)].map(before, " + containersExpression(debugContainers, "!(c.name in before), ") + ")[0]"
}

func containersExpression(list, filter string) string {
	// A pod that has none yet has null, and is refused for that.
	return fmt.Sprintf("[%s.orValue([])].map(l, l == null ? [] : l)[0].transformList(i, c, %s{'at': dyn(%s + string(i) + ']'), 'object': dyn(c)})", podSite.optional("spec."+list), filter, Quote("spec."+list+"["))
}

// ClipExpression makes a text of an expression one short line, as a Requirement is shown.
func ClipExpression(of string) string {
	return fmt.Sprintf("[%s].map(t, t.size() > %d ? t.substring(0, %d) + '…' : t).map(t, t.findAll(r'%s').join(' '))[0]", of, clipped, clipped, printed)
}

// Quote makes a text a literal of CEL. Characters that would end the line, or that an API
// server sends no warning with, become spaces.
func Quote(text string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for _, r := range text {
		switch {
		case r == '\'' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsControl(r) || r == '\u2028' || r == '\u2029':
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('\'')
	return b.String()
}
