package pull

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
	"github.com/berth-cri/berth/pkg/engine/image/trusted"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// The kubelet turns errors of class Unknown with these prefixes into a waiting reason of that name.
const (
	registryUnavailable       = "RegistryUnavailable"
	signatureValidationFailed = "SignatureValidationFailed"
)

// maxCause bounds, in bytes, the text of the cause in an error.
const maxCause = 500

// pullError is what a caller gets for a failed pull: a text with advice and without secrets, and a
// class. It does not wrap the cause, which may contain secrets.
type pullError struct {
	text  string
	class error
}

func (e *pullError) Error() string { return e.text }
func (e *pullError) Unwrap() error { return e.class }

// resolveError is a failure to resolve a name.
type resolveError struct{ error }

func (e *resolveError) Unwrap() error { return e.error }

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// pullFailure is the input of explainPull.
type pullFailure struct {
	ref      string
	host     string
	hostsDir string
	root     string
	// verifiers is the directory of the image verifiers.
	verifiers string
	clean     registry.Redactor
	// cause is why the pull's context ended, if it did.
	cause error
	err   error
}

func explainPull(f pullFailure) error {
	text, class := f.classify()
	if errdefs.IsResourceExhausted(class) { // the text is complete
		return &pullError{class: class, text: f.clean.Text(text)}
	}
	// The text around the refusal would leave no room for the command that corrects it.
	if refused, is := errors.AsType[*trusted.Error](f.err); is {
		f.err = refused
	}
	detail := strings.TrimSpace(strings.ReplaceAll(f.clean.Text(f.err.Error()), "\n", " "))
	if len(detail) > maxCause {
		detail = detail[:maxCause] + "…"
	}
	return &pullError{class: class, text: f.clean.Text(text) + ": " + detail}
}

func (f pullFailure) classify() (text string, class error) {
	status, hasStatus := errors.AsType[remoteerrors.ErrUnexpectedStatus](f.err)
	switch {
	case errors.Is(f.cause, registry.ErrStalled):
		return fmt.Sprintf("%s: pull %s: registry %s sent no data for too long (pull_progress_timeout); check the registry and the network", registryUnavailable, f.ref, f.host), errdefs.ErrUnknown
	case errors.Is(f.err, registry.ErrSlowDownload):
		return fmt.Sprintf("%s: pull %s: registry %s sends a layer too slowly (the minimum is 1 KiB per second); check the registry and the network", registryUnavailable, f.ref, f.host), errdefs.ErrUnknown
	case errors.Is(f.err, registry.ErrSlowAnswers):
		return fmt.Sprintf("%s: pull %s: registry %s, or its token server, takes too long to respond (the limit is 5 minutes for the whole pull); check the registry and the network", registryUnavailable, f.ref, f.host), errdefs.ErrUnknown
	case bounds.IsBeyond(f.err):
		return fmt.Sprintf("pull %s: the image, or an answer of registry %s, exceeds a limit", f.ref, f.host), errdefs.ErrInvalidArgument
	case errors.Is(f.cause, ErrClosing):
		return fmt.Sprintf("pull %s: the daemon is stopping", f.ref), errdefs.ErrUnavailable
	case IsContextErr(f.err) && f.cause != nil:
		return "pull " + f.ref, context.Canceled
	case is[*trusted.Error](f.err):
		return fmt.Sprintf("pull %s: users other than root can change files that this pull depends on", f.ref), errdefs.ErrFailedPrecondition
	case is[*verifyError](f.err):
		return fmt.Sprintf("%s: pull %s: rejected by an image verifier in %s", signatureValidationFailed, f.ref, f.verifiers), errdefs.ErrUnknown
	case is[*unpack.DecryptError](f.err):
		return fmt.Sprintf("pull %s: the image is encrypted: %s", f.ref, unpack.KeysAdvice(f.err)), errdefs.ErrFailedPrecondition
	case disk.IsNoSpace(f.err):
		return fmt.Sprintf("pull %s: no space left for images under %s (%s); remove images or enlarge the filesystem", f.ref, f.root, atomicfile.FreeSpace(f.root)), errdefs.ErrResourceExhausted
	case isCertificate(f.err):
		return fmt.Sprintf("pull %s: registry %s has a certificate that this node does not trust; %s with ca = \"<file>\"", f.ref, f.host, f.hostsAdvice()), errdefs.ErrFailedPrecondition
	case isDenied(f.err), hasStatus && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden):
		return fmt.Sprintf("pull %s: registry %s denies access; check that the image exists, and the credentials (a pod's imagePullSecrets; --creds-file of berth image pull)", f.ref, f.host), errdefs.ErrPermissionDenied
	case hasStatus && status.StatusCode == http.StatusTooManyRequests:
		return fmt.Sprintf("pull %s: registry %s limits the rate of pulls; wait, or use a mirror or an account", f.ref, f.host), errdefs.ErrUnavailable
	case is[*catalog.PlatformError](f.err):
		unfit, _ := errors.AsType[*catalog.PlatformError](f.err)
		return fmt.Sprintf("pull %s: %s", f.ref, unfit.Advice()), errdefs.ErrNotFound
	case hasStatus && status.StatusCode >= 500:
		return fmt.Sprintf("%s: pull %s: registry %s failed", registryUnavailable, f.ref, f.host), errdefs.ErrUnknown
	case errors.Is(f.err, http.ErrSchemeMismatch):
		return fmt.Sprintf("pull %s: registry %s answers plain HTTP, not TLS; %s with server = \"http://%s\" if the network is trusted, or pull it once by berth image pull --plain-http", f.ref, f.host, f.hostsAdvice(), f.host), errdefs.ErrFailedPrecondition
	case isUnknownHost(f.err):
		return fmt.Sprintf("%s: pull %s: the name of registry %s does not resolve; check the image name and the node's DNS, or %s with a mirror", registryUnavailable, f.ref, f.host, f.hostsAdvice()), errdefs.ErrUnknown
	case isNetwork(f.err):
		return fmt.Sprintf("%s: pull %s: cannot reach registry %s; check the network, or %s with a mirror", registryUnavailable, f.ref, f.host, f.hostsAdvice()), errdefs.ErrUnknown
	case is[*resolveError](f.err) && errdefs.IsNotFound(f.err):
		return fmt.Sprintf("pull %s: registry %s does not have the image; check name and tag", f.ref, f.host), errdefs.ErrNotFound
	case errdefs.IsNotFound(f.err):
		return fmt.Sprintf("pull %s: a part of the image is missing in registry %s", f.ref, f.host), errdefs.ErrNotFound
	}
	return "pull " + f.ref, errdefs.Resolve(f.err)
}

func (f pullFailure) hostsAdvice() string {
	return fmt.Sprintf("write %s/%s/hosts.toml", cmp.Or(f.hostsDir, "<registry hosts directory>"), f.host)
}

// wasInterrupted reports whether a pull ended early for another reason than its content: its
// context was cancelled with cause, or the network or the registry failed with err.
func wasInterrupted(cause, err error) bool {
	if disk.IsNoSpace(err) || bounds.IsBeyond(err) {
		return false
	}
	status, _ := errors.AsType[remoteerrors.ErrUnexpectedStatus](err)
	return cause != nil || errors.Is(err, registry.ErrSlowDownload) || errors.Is(err, registry.ErrSlowAnswers) || isNetwork(err) || errdefs.IsUnavailable(err) ||
		status.StatusCode >= 500 || status.StatusCode == http.StatusTooManyRequests
}

// IsContextErr reports whether err is the error of an ended context.
func IsContextErr(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func isCertificate(err error) bool {
	return is[*tls.CertificateVerificationError](err) || is[x509.UnknownAuthorityError](err)
}

func isDenied(err error) bool {
	return errors.Is(err, docker.ErrInvalidAuthorization) || errdefs.IsPermissionDenied(err) || errdefs.IsUnauthorized(err) ||
		strings.Contains(err.Error(), "missing username or secret")
}

func isUnknownHost(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

// isNetwork reports whether a connection failed. A kernel error about a file does not count, though
// its type implements net.Error, nor does an invalid URL.
func isNetwork(err error) bool {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Op != "parse"
	}
	if e, ok := errors.AsType[net.Error](err); ok {
		if _, kernel := e.(syscall.Errno); !kernel {
			return true
		}
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}
