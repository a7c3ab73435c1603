package router

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

const (
	// fullID is the length of an id that is never taken for a prefix.
	fullID = 64
	// maxCandidates is how many ids an error about an ambiguous one lists.
	maxCandidates = 8
	// minSlots is the size of a small index. It is a power of two, as all sizes.
	minSlots = 64
)

// index finds owners by id. Any number may read while one writes.
//
// It is a hash table with open addressing whose slots are filled once: a reader
// follows slots until an empty one and needs no lock, a removed owner leaves a
// mark, and a table that is three quarters full, marks included, is replaced by
// a fresh one. It stays that small because a lookup costs what it misses in the
// processor's caches. A map behind a pointer would have to be copied for each
// new container, and touches twice the memory in a lookup.
type index struct {
	slots atomic.Pointer[[]slot]
	// used counts filled slots, and live those without a mark. They belong to
	// the writer.
	used, live int
}

// slot holds an owner. Its hash is written before the owner is.
type slot struct {
	hash  uint64
	owner atomic.Pointer[Owner]
}

// removed marks the slot of an owner that is gone.
var removed = new(Owner)

// hash mixes the ends of an id, which are random in ids as runtimes make them.
// Ids that collide only take longer to find.
func hash(id string) uint64 {
	if len(id) < 8 {
		h := uint64(len(id))
		for i := range len(id) {
			h = h<<8 | uint64(id[i])
		}
		return mix(h)
	}
	return mix(word(id) ^ bits.RotateLeft64(word(id[len(id)-8:]), 29))
}

// word reads eight bytes.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// mix spreads all bits over the lower ones (the finish of MurmurHash3).
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// get returns the owner of exactly this id, or nil.
func (x *index) get(id string) *Owner {
	_, o := x.find(id)
	return o
}

// find returns also the slot.
func (x *index) find(id string) (*slot, *Owner) {
	table := x.slots.Load()
	if table == nil {
		return nil, nil
	}
	slots := *table
	h := hash(id)
	for i := h; ; i++ {
		s := &slots[i&uint64(len(slots)-1)]
		o := s.owner.Load()
		if o == nil {
			return nil, nil
		}
		if s.hash == h && o != removed && o.ID == id {
			return s, o
		}
	}
}

// put adds an owner. One that has the id already stays.
func (x *index) put(o *Owner) {
	if x.get(o.ID) != nil {
		return
	}
	table := x.slots.Load()
	if table == nil || 4*(x.used+1) > 3*len(*table) {
		table = x.renew()
	}
	fill(*table, o)
	x.used++
	x.live++
}

// drop removes an id; an unknown one is no mistake.
func (x *index) drop(id string) {
	if s, o := x.find(id); o != nil {
		s.owner.Store(removed)
		x.live--
	}
}

// renew replaces the table by one without marks that has room.
func (x *index) renew() *[]slot {
	size := minSlots
	for size < 2*(x.live+1) {
		size *= 2
	}
	next := make([]slot, size)
	x.each(func(o *Owner) { fill(next, o) })
	x.used = x.live
	x.slots.Store(&next)
	return &next
}

// fill puts an owner into the first free slot from where its hash points to.
func fill(slots []slot, o *Owner) {
	h := hash(o.ID)
	for i := h; ; i++ {
		s := &slots[i&uint64(len(slots)-1)]
		if s.owner.Load() == nil {
			s.hash = h
			s.owner.Store(o)
			return
		}
	}
}

// each visits all owners, in no order.
func (x *index) each(visit func(*Owner)) {
	table := x.slots.Load()
	if table == nil {
		return
	}
	slots := *table
	for i := range slots {
		if o := slots[i].owner.Load(); o != nil && o != removed {
			visit(o)
		}
	}
}

// resolve returns the owner of an id or of a unique prefix of one, or nil. An
// ambiguous prefix is an InvalidArgument that lists the candidates. A whole id
// is looked up, never searched.
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
	return fmt.Errorf("id %q is ambiguous, it is the beginning of %s%s; give more of it: %w",
		prefix, strings.Join(ids, ", "), more, errdefs.ErrInvalidArgument)
}
