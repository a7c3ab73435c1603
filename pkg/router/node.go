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

// NodeReport contains what the node reports in addition to its backends and the table.
type NodeReport interface {
	// Version answers the Version RPC. The kubelet prefixes the IDs of containers in the API with
	// the answer's runtime_name, so the answer must not depend on the default handler's backend.
	Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error)
	// Stranded returns one line for each daemon that has unreachable pods and that no handler uses
	// any more.
	Stranded() []string
	// AdvertiseNotReady reports whether handlers that are not ready are listed.
	AdvertiseNotReady() bool
	// Info returns entries for the info of a verbose Status.
	Info() map[string]string
}

// node routes calls about the node as a whole, first to the default handler's backend.
type node struct {
	routes routes
	owners *owners
	report NodeReport
	// settings is the last request of UpdateRuntimeConfig, nil before the first.
	settings *atomic.Pointer[runtimeapi.UpdateRuntimeConfigRequest]
}

func (n node) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return n.report.Version(ctx, req)
}

func (n node) RuntimeConfig(ctx context.Context, req *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	_, resp, err := askDefault(ctx, n, req, Backend.RuntimeConfig)
	return resp, err
}

// askDefault calls the default handler's backend. If that fails it tries the others, because a
// backend that is away or broken must not fail the whole node.
func askDefault[Q, R any](ctx context.Context, n node, req Q, call func(Backend, context.Context, Q) (R, error)) (Backend, R, error) {
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

// refused reports whether err is about the request, so that every backend would return it.
func refused(err error) bool {
	code := status.Code(err)
	return code == codes.Unimplemented || code == codes.InvalidArgument || errdefs.IsNotImplemented(err) || errdefs.IsInvalidArgument(err)
}

// UpdateRuntimeConfig updates every backend: all need the pod CIDR for their pods.
func (n node) UpdateRuntimeConfig(ctx context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	n.settings.Store(proto.CloneOf(req)) // first, so that ApplySettings reaches a backend that is adopted meanwhile
	return gather(ctx, n.owners.all(), req, Backend.UpdateRuntimeConfig, concatenated)
}

// Status returns the status of the default handler's backend, with additional conditions of other
// backends and with the table's handlers. The runtime is ready if that of any backend is ready; the
// condition HandlersReady lists the handlers that are not ready.
func (n node) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	table := n.routes.registry.Current()
	standard, _ := table.Lookup("")
	speaker, main, err := askDefault(ctx, n, req, Backend.Status)
	if err != nil {
		return nil, err
	}
	// A failed backend is left out: its pods are affected, the node is not.
	others := askEach(ctx, nil, n.owners.beside(speaker), req, Backend.Status)
	var answers []*runtimeapi.StatusResponse
	for _, o := range others {
		if o.err == nil {
			answers = append(answers, o.answer)
		}
	}
	all := append([]reply[*runtimeapi.StatusResponse]{{backend: speaker, answer: main}}, others...)
	routes := table.Routes()
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{
			Conditions: append(conditions(main, answers), handlersReady(routes, n.report.Stranded())),
		},
		Info:            n.info(req, all),
		RuntimeHandlers: runtimeHandlers(routes, standard, featuresOf(all), n.report.AdvertiseNotReady()),
		Features:        main.GetFeatures(),
	}
	addUnknown(resp, main)
	addUnknown(resp.GetStatus(), main.GetStatus())
	return resp, nil
}

// conditions returns the conditions of main, and those of others with types that main lacks. A true
// RuntimeReady replaces a false one. HandlersReady is dropped: that of another berth describes the
// other berth's handlers. Pure.
func conditions(main *runtimeapi.StatusResponse, others []*runtimeapi.StatusResponse) []*runtimeapi.RuntimeCondition {
	var merged []*runtimeapi.RuntimeCondition
	place := map[string]int{}
	for _, answer := range append([]*runtimeapi.StatusResponse{main}, others...) {
		for _, c := range answer.GetStatus().GetConditions() {
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

// features are the handlers in the backends' answers, by the backend's ID and the handler's name.
type features map[string]map[string]*runtimeapi.RuntimeHandler

func featuresOf(all []reply[*runtimeapi.StatusResponse]) features {
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

// of returns a handler's features as reported by the backend of its new pods. If that backend has
// no entry, for example for a removed handler, the entry of another backend is used, which may have
// earlier pods of the handler.
func (f features) of(r *route) *runtimeapi.RuntimeHandler {
	name := r.Definition.Name
	if known := f[r.Backend.ID()][name]; known != nil {
		return known
	}
	for _, id := range slices.Sorted(maps.Keys(f)) {
		if known := f[id][name]; known != nil {
			return known
		}
	}
	return nil
}

// info returns the info of a verbose Status: that of the first backend, overwritten by
// NodeReport.Info, and the replies of all backends if there are several.
func (n node) info(req *runtimeapi.StatusRequest, all []reply[*runtimeapi.StatusResponse]) map[string]string {
	main := all[0].answer.GetInfo()
	if !req.GetVerbose() {
		return main
	}
	info := map[string]string{}
	maps.Copy(info, main)
	maps.Copy(info, n.report.Info())
	if len(all) > 1 {
		info["backends"] = repliesJSON(all)
	}
	return info
}

// repliesJSON returns the reply of each backend in JSON, by the backend's ID. Pure.
func repliesJSON(all []reply[*runtimeapi.StatusResponse]) string {
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

// runtimeHandlers lists the handlers, and the default one a second time under "", where the kubelet
// looks up pods without a RuntimeClass. Handlers that are not ready are left out unless all is set.
// Cordoned and draining ones stay, because the kubelet reads the features of existing pods from
// this list whenever it starts a container in one.
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

// runtimeHandler copies a handler's features from its backend's reply, including fields that are
// newer than berth's CRI.
func runtimeHandler(name string, known *runtimeapi.RuntimeHandler) *runtimeapi.RuntimeHandler {
	h := &runtimeapi.RuntimeHandler{Name: name, Features: known.GetFeatures()}
	if h.GetFeatures() == nil {
		h.Features = &runtimeapi.RuntimeHandlerFeatures{}
	}
	addUnknown(h, known)
	return h
}

// readyCondition is the type of the condition that is false while a handler is not ready. The
// kubelet ignores it, so the node stays ready.
const readyCondition = "HandlersReady"

// maxConditionMessage bounds the message of a condition, in bytes.
const maxConditionMessage = 1024

// handlersReady lists the handlers that are not ready, with their reasons, and the unreachable pods
// of removed handlers. Cordoned handlers do not count: they are as the operator wants them. Pure.
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

// joined joins texts up to bound bytes, and ends with the number of those left out.
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
