package router

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// Told is what the node reports of itself beside its backends' reports and the table.
type Told interface {
	// Version is the answer to the call of that name. The kubelet begins the ids of
	// containers in the API with its runtime_name, so that nothing may change it: not
	// the backend of the default handler either.
	Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error)
	// Stranded has a line for each daemon that no handler leads to any more and whose pods
	// cannot be reached.
	Stranded() []string
	// AdvertiseNotReady is whether handlers that are not ready are listed.
	AdvertiseNotReady() bool
	// Info is added to the verbose part.
	Info() map[string]string
}

// node routes what is about the node as a whole. The default handler's backend
// speaks for it.
type node struct {
	routes routes
	owners *owners
	told   Told
	// settings are what UpdateRuntimeConfig said last, nil before.
	settings *atomic.Pointer[runtimeapi.UpdateRuntimeConfigRequest]
}

func (n node) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return n.told.Version(ctx, req)
}

func (n node) RuntimeConfig(ctx context.Context, req *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	_, resp, err := speak(ctx, n, req, Backend.RuntimeConfig)
	return resp, err
}

// speak asks the default handler's backend, and another in its place if that one
// fails: a backend that is away, or broken, takes its own pods' node with it only
// if there is no other.
func speak[Q, R any](ctx context.Context, n node, req Q, call func(Backend, context.Context, Q) (R, error)) (Backend, R, error) {
	standard := n.routes.standard().Backend
	resp, err := call(standard, ctx, req)
	if err == nil || ctx.Err() != nil || refused(err) {
		return standard, resp, err
	}
	for _, b := range n.owners.beside(standard) {
		if other, otherErr := call(b, ctx, req); otherErr == nil {
			return b, other, nil
		}
	}
	return standard, resp, err
}

// refused says whether an error is about the call, and not about who was asked.
func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unimplemented || code == codes.InvalidArgument || errdefs.IsNotImplemented(err) || errdefs.IsInvalidArgument(err)
}

// UpdateRuntimeConfig tells every backend: pods of each need the addresses.
func (n node) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	n.settings.Store(proto.CloneOf(req)) // first, so that a backend that comes now is told by Tell
	return gather(ctx, n.owners.all(), req, Backend.UpdateRuntimeConfig, concatenated)
}

// Status is that of the default handler's backend, with the conditions that
// only others have, and with the handlers of the table. The runtime is ready if
// that of any backend is: which handlers are not is said apart.
func (n node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	table := n.routes.registry.Current()
	standard, _ := table.Lookup("")
	speaker, main, err := speak(ctx, n, req, Backend.Status)
	if err != nil {
		return nil, err
	}
	// One that fails is left out: its pods are in trouble, the node is not.
	others := askEach(ctx, nil, n.owners.beside(speaker), req, Backend.Status)
	var answers []*runtimeapi.StatusResponse
	for _, o := range others {
		if o.err == nil {
			answers = append(answers, o.answer)
		}
	}
	all := append([]said[*runtimeapi.StatusResponse]{{backend: speaker, answer: main}}, others...)
	routes := table.Routes()
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{
			Conditions: append(conditions(main, answers), handlersReady(routes, n.told.Stranded())),
		},
		Info:            n.info(req, all),
		RuntimeHandlers: runtimeHandlers(routes, standard, featuresOf(all), n.told.AdvertiseNotReady()),
		Features:        main.GetFeatures(),
	}
	addUnread(resp, main)
	addUnread(resp.GetStatus(), main.GetStatus())
	return resp, nil
}

// conditions are those of the main answer, and from the others those of types
// that it does not have, or a runtime that is ready. What another berth says of its
// own handlers is not about this one's. Pure.
func conditions(main *runtimeapi.StatusResponse, others []*runtimeapi.StatusResponse) []*runtimeapi.RuntimeCondition {
	var merged []*runtimeapi.RuntimeCondition
	place := map[string]int{}
	for _, said := range append([]*runtimeapi.StatusResponse{main}, others...) {
		for _, c := range said.GetStatus().GetConditions() {
			at, seen := place[c.GetType()]
			switch {
			case c.GetType() == readyCondition:
			case !seen:
				place[c.GetType()] = len(merged)
				merged = append(merged, c)
			case c.GetType() == runtimeapi.RuntimeReady && c.GetStatus() && !merged[at].GetStatus():
				merged[at] = c
			}
		}
	}
	return merged
}

// features are what backends say about their handlers, by the backends' ids.
type features map[string]map[string]*runtimeapi.RuntimeHandler

// featuresOf collects them from the backends' answers.
func featuresOf(all []said[*runtimeapi.StatusResponse]) features {
	f := features{}
	for _, s := range all {
		of := map[string]*runtimeapi.RuntimeHandler{}
		for _, h := range s.answer.GetRuntimeHandlers() {
			of[h.GetName()] = h
		}
		f[s.backend.ID()] = of
	}
	return f
}

// of are a handler's, in the words of the backend that its new pods go to: one
// that has pods of it from earlier may know it, too. Only where that one knows
// nothing, as of a handler that is gone, another may say.
func (f features) of(r *route) *runtimeapi.RuntimeHandler {
	name := r.Definition.Name
	if said := f[r.Backend.ID()][name]; said != nil {
		return said
	}
	for _, id := range slices.Sorted(maps.Keys(f)) {
		if said := f[id][name]; said != nil {
			return said
		}
	}
	return nil
}

// info is the verbose part: that of the main backend, which goes first, with what
// is told of the handlers, and, if there are several backends, with what each said.
func (n node) info(req *runtimeapi.StatusRequest, all []said[*runtimeapi.StatusResponse]) map[string]string {
	main := all[0].answer.GetInfo()
	if !req.GetVerbose() {
		return main
	}
	info := map[string]string{}
	maps.Copy(info, main)
	maps.Copy(info, n.told.Info())
	if len(all) > 1 {
		info["backends"] = sayings(all)
	}
	return info
}

// sayings is what each backend said of itself, in JSON by the backend's id. Pure.
func sayings(all []said[*runtimeapi.StatusResponse]) string {
	type failure struct {
		Error string `json:"error"`
	}
	by := map[string]any{}
	for _, s := range all {
		if s.err != nil {
			by[s.backend.ID()] = failure{s.err.Error()}
			continue
		}
		text, err := protojson.Marshal(s.answer)
		if err != nil {
			by[s.backend.ID()] = failure{err.Error()}
			continue
		}
		by[s.backend.ID()] = json.RawMessage(text)
	}
	text, err := json.Marshal(by)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// runtimeHandlers lists the handlers, and the default one a second time under
// "": the kubelet looks pods without a RuntimeClass up there. Those that are not
// ready are left out unless they are wanted. Those that accept no pods for another
// reason are not: the kubelet takes the features of pods that exist from here,
// whenever it starts a container in one.
func runtimeHandlers(
	routes []*route, standard *route, f features, all bool,
) []*runtimeapi.RuntimeHandler {
	listed := func(r *route) bool { return all || r.State.Phase != handler.NotReady }
	var handlers []*runtimeapi.RuntimeHandler
	if listed(standard) {
		handlers = append(handlers, runtimeHandler("", f.of(standard)))
	}
	for _, r := range routes {
		if listed(r) {
			handlers = append(handlers, runtimeHandler(r.Definition.Name, f.of(r)))
		}
	}
	return handlers
}

// runtimeHandler is a handler with what its backend says of it, which may be more
// than this CRI knows.
func runtimeHandler(name string, said *runtimeapi.RuntimeHandler) *runtimeapi.RuntimeHandler {
	h := &runtimeapi.RuntimeHandler{Name: name, Features: said.GetFeatures()}
	if h.GetFeatures() == nil {
		h.Features = &runtimeapi.RuntimeHandlerFeatures{}
	}
	addUnread(h, said)
	return h
}

// readyCondition is the type of the condition that is false while a handler is
// not ready. The kubelet takes no notice of it: the node stays ready.
const readyCondition = "HandlersReady"

// maxConditionMessage bounds the message of a condition, in bytes.
const maxConditionMessage = 1024

// handlersReady tells which handlers are not ready, and why, and which pods of
// handlers that are gone cannot be reached. What an operator cordoned is as it
// should be. Pure.
func handlersReady(routes []*route, stranded []string) *runtimeapi.RuntimeCondition {
	c := &runtimeapi.RuntimeCondition{Type: readyCondition, Status: true}
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
