package unpack

import (
	"encoding/base64"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
)

func TestCheckEncryption(t *testing.T) {
	const jwe = wrappedKeyPrefix + "jwe"
	opts := func(json string) map[string]string {
		return map[string]string{CipherAnnotation: base64.StdEncoding.EncodeToString([]byte(json)), jwe: "a,b"}
	}
	for name, c := range map[string]struct {
		annotations map[string]string
		mediaType   string
		works       bool
	}{
		"no annotations":  {nil, "", true},
		"usual":           {opts(`{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"YQ==","cipheroptions":{}}`), "", true},
		"right nonce":     {opts(`{"cipheroptions":{"nonce":"MDEyMzQ1Njc4OWFiY2RlZg=="}}`), "", true},
		"short nonce":     {opts(`{"cipheroptions":{"nonce":"YQ=="}}`), "", false},
		"empty nonce":     {opts(`{"cipheroptions":{"nonce":""}}`), "", false},
		"not JSON":        {opts("{"), "", false},
		"not base64":      {map[string]string{CipherAnnotation: "!"}, "", false},
		"too many keys":   {map[string]string{jwe: strings.Repeat("a,", maxWrappedKeys)}, "", false},
		"too long key":    {map[string]string{jwe: strings.Repeat("a", maxWrappedKeySize+1)}, "", false},
		"encrypted twice": {nil, imagespec.MediaTypeImageLayerGzip + catalog.EncryptedSuffix + catalog.EncryptedSuffix, false},
	} {
		if c.mediaType == "" {
			c.mediaType = imagespec.MediaTypeImageLayerGzip + catalog.EncryptedSuffix
		}
		if err := checkEncryption(imagespec.Descriptor{MediaType: c.mediaType, Annotations: c.annotations}); (err == nil) != c.works {
			t.Errorf("%s: the error is %v; want success: %v", name, err, c.works)
		}
	}
}
