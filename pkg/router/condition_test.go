package router

import (
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// The condition HandlersReady of a backend that is a berth is not forwarded.
func TestConditionsOfAnotherBerth(t *testing.T) {
	of := func(message string, ready bool) *runtimeapi.StatusResponse {
		return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: ready, Message: message}, {Type: readyCondition, Message: message}, {Type: "Own-" + message},
		}}}
	}
	var got []string
	for _, c := range conditions(of("a", false), []*runtimeapi.StatusResponse{of("b", true), of("c", true)}) {
		got = append(got, c.GetType()+" "+c.GetMessage())
	}
	if want := "RuntimeReady b,Own-a ,Own-b ,Own-c "; strings.Join(got, ",") != want {
		t.Errorf("conditions are %q, want %q", got, want)
	}
}

func TestHandlersReady(t *testing.T) {
	in := func(name string, phase handler.Phase, reason string) *route {
		return &route{Definition: &handler.Definition{Name: name}, State: handler.State{Phase: phase, Reason: reason}}
	}
	many := []*route{in("ok", handler.Ready, "")}
	for i := range 100 {
		many = append(many, in(fmt.Sprintf("broken-%d", i), handler.NotReady, strings.Repeat("why ", 20)))
	}
	for name, c := range map[string]struct {
		routes   []*route
		message  string
		stranded []string
	}{
		"all ready":               {[]*route{in("a", handler.Ready, "")}, "", nil},
		"cordoned by an operator": {[]*route{in("a", handler.Cordoned, "upgrade"), in("b", handler.Draining, "gone")}, "", nil},
		"one":                     {[]*route{in("a", handler.Ready, ""), in("b", handler.NotReady, "no binary")}, `handler "b": no binary`, nil},
		"two":                     {[]*route{in("a", handler.NotReady, "x"), in("b", handler.NotReady, "y")}, `handler "a": x; handler "b": y`, nil},
		"many":                    {many, "more", nil},
		"a long reason":           {[]*route{in("a", handler.NotReady, strings.Repeat("ä", 2000))}, "...", nil},
		"pods without a handler":  {[]*route{in("a", handler.Ready, "")}, "2 pods", []string{"2 pods"}},
		"handler and pods":        {[]*route{in("a", handler.NotReady, "x")}, `handler "a": x; 2 pods`, []string{"2 pods"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := handlersReady(c.routes, c.stranded)
			if got.GetType() != readyCondition || got.GetStatus() != (c.message == "") || !strings.Contains(got.GetMessage(), c.message) {
				t.Errorf("got %v", got)
			}
			if len(got.GetMessage()) > maxConditionMessage {
				t.Errorf("the message has %d bytes", len(got.GetMessage()))
			}
			if got.GetStatus() != (got.GetReason() == "") {
				t.Errorf("the reason is %q", got.GetReason())
			}
		})
	}
}
