package runtimeclass

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Expression is a rule for an API server: a CEL list of the fields that request a capability, as
// "field: value". Only the first is shown. Text uses variables.pod, variables.asking (the pod;
// {} if only containers are checked), and variables.containers (ContainersExpression or
// DebugContainersExpression).
type Expression struct {
	Capability capability.Name
	Text       string
}

// Expressions returns all rules in CEL, in order.
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

// ContainersExpression lists the containers that variables.pod is created with, and their paths.
func ContainersExpression() string {
	var lists []string
	for _, list := range containerLists {
		if list != debugContainers {
			lists = append(lists, containersExpression(list, ""))
		}
	}
	return strings.Join(lists, " + ")
}

// DebugContainersExpression lists the ephemeral containers of variables.pod that oldObject lacks,
// and their paths.
func DebugContainersExpression() string {
	return "[dyn(oldObject).?spec.?" + debugContainers + ".orValue([]).map(c, c.name)].map(before, " + containersExpression(debugContainers, "!(c.name in before), ") + ")[0]"
}

func containersExpression(list, filter string) string {
	// A pod without such a list may have null, which the server rejects later.
	return fmt.Sprintf("[%s.orValue([])].map(l, l == null ? [] : l)[0].transformList(i, c, %s{'at': dyn(%s + string(i) + ']'), 'object': dyn(c)})", podSite.optional("spec."+list), filter, Quote("spec."+list+"["))
}

// ClipExpression shortens the text of an expression to one line, as clip does.
func ClipExpression(of string) string {
	return fmt.Sprintf("[%s].map(t, t.size() > %d ? t.substring(0, %d) + '…' : t).map(t, t.findAll(r'%s').join(' '))[0]", of, clipped, clipped, printed)
}

// Quote returns a text as a CEL literal. Characters that would end the line, or that prevent an API
// server from sending a warning, become spaces.
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
