package validate

import (
	"errors"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxImageRef is longer than any reference that a registry accepts: 255 bytes of name, 128 of tag,
// and a digest.
const maxImageRef = 1024

// imageID is an image's id or the beginning of one, with or without algorithm. A short form that is
// also a name is treated as a name.
var imageID = regexp.MustCompile(`^(sha256:)?[0-9a-f]{1,64}$`)

// PullImage checks the reference to pull. The registry client checks credentials; an error here
// never contains them.
func PullImage(req *runtimeapi.PullImageRequest) error {
	ref := req.GetImage().GetImage()
	if ref == "" {
		return invalid("image", "is missing; name the image to pull")
	}
	return named("image", ref)
}

// checkImageRef checks a reference to an image that may be present: a tag, a digest, an id or the
// beginning of one.
func checkImageRef(ref string) error {
	if ref == "" {
		return invalid("image", "is empty; give a name, a digest or an id")
	}
	if imageID.MatchString(ref) {
		return nil
	}
	return named("image", ref)
}

// named checks a reference in Docker's notation.
func named(field, ref string) error {
	if err := atMost(field, ref, maxImageRef); err != nil {
		return err
	}
	if _, err := reference.ParseNormalizedNamed(ref); err != nil {
		return invalid(field, "%s is not an image reference (%s); write it as registry/name:tag or registry/name@sha256:digest", quoted(ref), reason(err))
	}
	return nil
}

// reason returns the parser's reason without the reference, which some of its errors repeat in
// full.
func reason(err error) string {
	for _, known := range []error{
		reference.ErrNameContainsUppercase, reference.ErrNameTooLong, reference.ErrTagInvalidFormat,
		reference.ErrDigestInvalidFormat, reference.ErrNameNotCanonical,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	// The parser does not always return its own error for this case.
	if strings.Contains(err.Error(), "must be lowercase") {
		return reference.ErrNameContainsUppercase.Error()
	}
	return reference.ErrReferenceInvalidFormat.Error()
}
