package catalog

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

func TestManifestLimits(t *testing.T) {
	l := bounds.Limits{}.Complete()
	config := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageConfig, Digest: digest.FromString("c"), Size: 100}
	layers := func(n int, change func(*imagespec.Descriptor)) []imagespec.Descriptor {
		var all []imagespec.Descriptor
		for range n {
			d := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayerGzip, Digest: digest.FromString("l"), Size: 1 << 40}
			if change != nil {
				change(&d)
			}
			all = append(all, d)
		}
		return all
	}
	for name, c := range map[string]struct {
		m    imagespec.Manifest
		says string // a part of the expected error; empty: no error
	}{
		"as many layers as allowed": {imagespec.Manifest{Config: config, Layers: layers(500, nil)}, ""},
		"one layer too many":        {imagespec.Manifest{Config: config, Layers: layers(501, nil)}, "more than 500"},
		"no layers":                 {imagespec.Manifest{Config: config}, ""},
		"too large configuration": {
			imagespec.Manifest{Config: imagespec.Descriptor{MediaType: config.MediaType, Size: l.MaxManifestSize + 1}}, "more than 4194304",
		},
		"configuration without a digest": {imagespec.Manifest{Config: imagespec.Descriptor{MediaType: config.MediaType, Digest: "sha256:\x1b[31m"}}, "of the configuration"},
		"negative configuration":         {imagespec.Manifest{Config: imagespec.Descriptor{MediaType: config.MediaType, Size: -1}}, "invalid size, -1"},
		"configuration of a chart":       {imagespec.Manifest{Config: imagespec.Descriptor{MediaType: "application/vnd.cncf.helm.config.v1+json"}}, "of the configuration"},
		"manifest as layer": {
			imagespec.Manifest{Config: config, Layers: layers(1, func(d *imagespec.Descriptor) { d.MediaType = imagespec.MediaTypeImageManifest })}, "is not valid",
		},
		"negative layer":      {imagespec.Manifest{Config: config, Layers: layers(1, func(d *imagespec.Descriptor) { d.Size = -1 })}, "is not valid"},
		"too long media type": {imagespec.Manifest{Config: config, Layers: layers(1, func(d *imagespec.Descriptor) { d.MediaType = "a/" + strings.Repeat("+encrypted", 100) })}, "media type"},
		"two URLs":            {imagespec.Manifest{Config: config, Layers: layers(1, func(d *imagespec.Descriptor) { d.URLs = []string{"https://a.test/", "https://b.test/"} })}, ""},
		"too many URLs":       {imagespec.Manifest{Config: config, Layers: layers(1, func(d *imagespec.Descriptor) { d.URLs = make([]string, MaxURLs+1) })}, "URLs"},
		"too long URL":        {imagespec.Manifest{Config: config, Layers: layers(1, func(d *imagespec.Descriptor) { d.URLs = []string{strings.Repeat("a", maxURLLength+1)} })}, "URL of"},
	} {
		switch err := checkParts(l, c.m); {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

func TestElements(t *testing.T) {
	many := func(n int) string { return "[" + strings.Repeat(`"",`, n) + `""]` }
	for name, c := range map[string]struct {
		text     string
		accepted bool
	}{
		"as many as allowed":            {many(MaxElements - 1), true},
		"one too many":                  {many(MaxElements), false},
		"nested":                        {strings.Repeat("[", MaxElements+1), false},
		"objects":                       {`{"a":[` + strings.Repeat("{},", MaxElements) + `{}]}`, false},
		"commas in a string":            {`{"a":"` + strings.Repeat(",", MaxElements+1) + `"}`, true},
		"quotes in a string":            {`{"a":"` + strings.Repeat(`\",`, MaxElements+1) + `"}`, true},
		"string ends after a backslash": {`["\\"` + strings.Repeat(`,""`, MaxElements+1) + `]`, false},
		"empty text":                    {"", true},
		"truncated string":              {`"\`, true},
	} {
		if err := elements([]byte(c.text)); (err == nil) != c.accepted {
			t.Errorf("%s: the error is %v; want it accepted: %v", name, err, c.accepted)
		}
	}
}
