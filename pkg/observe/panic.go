package observe

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recoverPanic makes a panic the answer of the one call that caused it: the
// daemon serves every pod of the node. The caller gets no stack, the log does.
func recoverPanic(ctx context.Context, rpc string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	log.G(ctx).WithFields(log.Fields{"rpc": rpc, "panic": fmt.Sprint(p), "stack": string(debug.Stack())}).
		Error("Call panicked; please report this with the stack")
	*err = status.Errorf(codes.Internal, "%s failed because of a bug in berth; please report it with the stack in berth's log", rpc)
}
