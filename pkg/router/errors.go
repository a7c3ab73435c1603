package router

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// kubeletPrefixes are the words that the kubelet looks for at the beginning of an error.
var kubeletPrefixes = []string{
	crierrors.ErrRegistryUnavailable.Error(),
	crierrors.ErrSignatureValidationFailed.Error(),
	crierrors.ErrRROUnsupported.Error(),
	crierrors.ErrImageVolumeMountFailed.Error(),
}

// named adds the handler to an error, once, and keeps its class, code and details. An error with a
// prefix for the kubelet stays unchanged.
func named(handler string, err error) error {
	if handler == "" {
		return err
	}
	return prefixed(fmt.Sprintf("handler %q", handler), err)
}

// prefixed puts the owner of an error before its text, unless the text names the owner or begins
// with one of kubeletPrefixes. A nil error stays nil.
func prefixed(owner string, err error) error {
	if err == nil {
		return nil
	}
	st, isStatus := status.FromError(err)
	if !isStatus {
		if names(err.Error(), owner) {
			return err
		}
		return fmt.Errorf("%s: %w", owner, err)
	}
	if names(st.Message(), owner) {
		return err
	}
	p := st.Proto()
	p.Message = owner + ": " + p.GetMessage()
	return status.ErrorProto(p)
}

func names(text, owner string) bool {
	if strings.Contains(text, owner) {
		return true
	}
	return slices.ContainsFunc(kubeletPrefixes, func(word string) bool { return strings.HasPrefix(text, word) })
}

// unknown reports whether err is from the lookup of an owner, not from a backend.
func unknown(err error) bool { return errors.Is(err, errUnknown) }
