package observe

import (
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// known are the calls of this CRI, by the last part of their names. Others may
// be passed on to a backend that has them.
var known = func() map[string]bool {
	all := map[string]bool{}
	for _, service := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, m := range service.Methods {
			all[m.MethodName] = true
		}
		for _, s := range service.Streams {
			all[s.StreamName] = true
		}
	}
	return all
}()

// otherRPC is what metrics call the calls that this CRI does not have: a client
// may make up any name.
const otherRPC = "other"

// label is a call's name in metrics.
func label(rpc string) string {
	if known[rpc] {
		return rpc
	}
	return otherRPC
}
