package router

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// spoken are the words that the kubelet looks for at the beginning of an error.
var spoken = []string{
	crierrors.ErrRegistryUnavailable.Error(),
	crierrors.ErrSignatureValidationFailed.Error(),
	crierrors.ErrRROUnsupported.Error(),
	crierrors.ErrImageVolumeMountFailed.Error(),
}

// named says which handler an error is about, once, and keeps its class, code
// and details. An error that begins with a word for the kubelet stays as it is.
func named(handler string, err error) error {
	if handler == "" {
		return err
	}
	return prefixed(fmt.Sprintf("handler %q: ", handler), err)
}

// prefixed puts a prefix before an error's text unless it is there. No error stays
// none.
func prefixed(prefix string, err error) error {
	if err == nil {
		return nil
	}
	st, isStatus := status.FromError(err)
	if !isStatus {
		if begins(err.Error(), prefix) {
			return err
		}
		return fmt.Errorf("%s%w", prefix, err)
	}
	if begins(st.Message(), prefix) {
		return err
	}
	p := st.Proto()
	p.Message = prefix + p.GetMessage()
	return status.ErrorProto(p)
}

func begins(text, prefix string) bool {
	if strings.HasPrefix(text, prefix) {
		return true
	}
	for _, word := range spoken {
		if strings.HasPrefix(text, word) {
			return true
		}
	}
	return false
}

// unknown says whether err is a lookup's, and not a backend's.
func unknown(err error) bool { return errors.Is(err, errUnknown) }
