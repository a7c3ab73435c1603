package ocispec

import "strconv"

func ptr[T any](v T) *T { return &v }

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func byteCount(n uint64) string { return strconv.FormatUint(n, 10) + " bytes" }
