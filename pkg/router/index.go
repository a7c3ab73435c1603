package router

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
)

const (
	// fullID is the length of a full ID, which is never taken for a prefix.
	fullID = 64
	// maxCandidates bounds the IDs that an error about an ambiguous prefix lists.
	maxCandidates = 8
)

// index finds owners by ID. Reads need no lock.
type index struct {
	owners sync.Map // string -> *Owner
}

func (x *index) get(id string) *Owner {
	o, ok := x.owners.Load(id)
	if !ok {
		return nil
	}
	return o.(*Owner)
}

// put adds an owner unless its ID is already present.
func (x *index) put(o *Owner) { x.owners.LoadOrStore(o.ID, o) }

// drop removes an ID, if it is present.
func (x *index) drop(id string) { x.owners.Delete(id) }

// each visits all owners in no particular order.
func (x *index) each(visit func(*Owner)) {
	x.owners.Range(func(_, o any) bool {
		visit(o.(*Owner))
		return true
	})
}

// resolve returns the owner of an ID or unique prefix, or nil. An ambiguous prefix is an
// InvalidArgument error that lists the candidates. A full ID is never taken for a prefix.
func (x *index) resolve(id string) (*Owner, error) {
	if o := x.get(id); o != nil || len(id) >= fullID || id == "" {
		return o, nil
	}
	var found []*Owner
	x.each(func(o *Owner) {
		if strings.HasPrefix(o.ID, id) {
			found = append(found, o)
		}
	})
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	return nil, ambiguous(id, found)
}

func ambiguous(prefix string, found []*Owner) error {
	ids := make([]string, len(found))
	for i, o := range found {
		ids[i] = o.ID
	}
	slices.Sort(ids)
	more := ""
	if n := len(ids) - maxCandidates; n > 0 {
		ids, more = ids[:maxCandidates], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("ID %q is ambiguous, it is a prefix of %s%s; use a longer prefix: %w",
		prefix, strings.Join(ids, ", "), more, errdefs.ErrInvalidArgument)
}
