package router

import (
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// HandlersReady is the type of the condition that is false while a handler is
// not ready. The kubelet takes no notice of it: the node stays ready.
const HandlersReady = "HandlersReady"

// maxConditionMessage bounds the message of a condition, in bytes.
const maxConditionMessage = 1024

// handlersReady tells which handlers are not ready, and why, and which pods of
// handlers that are gone cannot be reached. What an operator cordoned is as it
// should be. Pure.
func handlersReady(routes []*route, stranded []string) *runtimeapi.RuntimeCondition {
	c := &runtimeapi.RuntimeCondition{Type: HandlersReady, Status: true}
	var reasons []string
	for _, r := range routes {
		if r.State.Phase == handler.NotReady {
			reasons = append(reasons, fmt.Sprintf("handler %q: %s", r.Definition.Name, r.State.Reason))
		}
	}
	reasons = append(reasons, stranded...)
	if len(reasons) > 0 {
		c.Status, c.Reason, c.Message = false, "HandlersNotReady", joined(reasons, maxConditionMessage)
	}
	return c
}

// joined puts texts together, and says how many more there are where they would
// be longer than a bound.
func joined(texts []string, bound int) string {
	const more = "; and %d more"
	var b strings.Builder
	for i, text := range texts {
		if i > 0 {
			text = "; " + text
		}
		left := fmt.Sprintf(more, len(texts)-i-1)
		if i == 0 && len(text) > bound-len(left) {
			text = strings.ToValidUTF8(text[:bound-len(left)-len("...")], "") + "..."
		}
		if b.Len()+len(text) > bound-len(left) {
			fmt.Fprintf(&b, more, len(texts)-i)
			break
		}
		b.WriteString(text)
	}
	return b.String()
}
