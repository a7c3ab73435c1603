package admin

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/printable"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// ServerOptions make a server identify callers, reject all users except root and the server's own
// user, and answer with gRPC codes.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(unixCredentials{}),
		grpc.UnaryInterceptor(unary),
		grpc.StreamInterceptor(stream),
	}
}

func unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	err = guarded(ctx, info.FullMethod, req, func() (err error) {
		resp, err = next(lifecycle.WithUser(ctx, userOf(ctx)), req)
		return err
	})
	return resp, err
}

func stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return guarded(s.Context(), info.FullMethod, nil, func() error { return next(srv, s) })
}

// reading reports whether a call only reads. Such a call is logged only if it fails.
func reading(rpc string) bool {
	return slices.ContainsFunc([]string{"Get", "List", "Watch", "Where"}, func(verb string) bool { return strings.HasPrefix(rpc, verb) })
}

// guarded authorizes and runs a call. It logs failures, and at level debug the success of a call
// that does not only read. pkg/lifecycle logs the details of changed handlers.
func guarded(ctx context.Context, method string, req any, call func() error) (err error) {
	rpc := path.Base(method)
	who, known := callerOf(ctx)
	entry := log.G(ctx).WithFields(log.Fields{"rpc": rpc, "uid": who.uid, "pid": who.pid})
	if of, is := req.(interface{ GetName() string }); is {
		entry = entry.WithField("handler", of.GetName())
	}
	if !known || who.uid != 0 && who.uid != self {
		entry.Warn("Rejected unauthorized management call")
		return grpcstatus.Errorf(codes.PermissionDenied, "user %d is not allowed to manage berth; call as root", who.uid)
	}
	defer func() {
		if p := recover(); p != nil {
			entry.WithField("panic", p).WithField("stack", string(debug.Stack())).Error("Management call panicked; please report this with the stack")
			err = grpcstatus.Errorf(codes.Internal, "%s panicked; see the log of berth (journalctl -u berth)", rpc)
		}
	}()
	err = readable(toStatus(ctx, call()))
	switch {
	case err != nil:
		entry.WithError(err).Info("Management call failed")
	case !reading(rpc):
		entry.Debug("Management call answered")
	}
	return err
}

// toStatus sets an error's gRPC code. Problems of the configuration are attached as details.
func toStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if st, ok := grpcstatus.FromError(err); ok {
		return st.Err()
	}
	var problems config.Problems
	if errors.As(err, &problems) {
		st, failure := grpcstatus.New(codes.FailedPrecondition, err.Error()).WithDetails(&adminv1.Problems{Problems: each(problems, problemMessage)})
		if failure != nil {
			return fmt.Errorf("report %w: %w", err, failure)
		}
		return st.Err()
	}
	if end := ctx.Err(); end != nil {
		return grpcstatus.FromContextError(end).Err()
	}
	code := grpcstatus.Code(errgrpc.ToGRPC(err))
	return grpcstatus.New(code, printable.Error(err)).Err()
}

// readable makes an error's text printable, with one line for each problem of a configuration.
func readable(err error) error {
	if err == nil {
		return nil
	}
	p := grpcstatus.Convert(err).Proto()
	p.Message = printable.Lines(p.GetMessage())
	return grpcstatus.ErrorProto(p)
}

func problemMessage(p config.Problem) *adminv1.Problem {
	return &adminv1.Problem{
		File: p.File, Line: int32(p.Line), Column: int32(p.Column), //nolint:gosec // files are at most 1 MiB
		Key: p.Key, Message: p.Message, Suggestion: p.Suggestion,
	}
}

// plainProblem returns a problem of which only the message is known.
func plainProblem(line string) *adminv1.Problem { return &adminv1.Problem{Message: line} }
