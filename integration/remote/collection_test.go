package remote

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// collector collects images as a kubelet's image manager does: what no container
// and no volume uses goes, the one that was used longest ago first, until there
// is space.
type collector struct {
	client  *testbed.Client
	records map[string]*imageRecord
}

type imageRecord struct {
	detected, used time.Time
	size           uint64
	pinned         bool
}

// detect learns which images there are, and returns those in use.
func (c *collector) detect(t *testing.T) map[string]bool {
	t.Helper()
	listed := images(t, c.client)
	containers, err := c.client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	testbed.Must(t, err)
	used := map[string]bool{}
	for _, one := range containers.GetContainers() {
		used[one.GetImageId()] = true
		s, err := c.client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: one.GetId()})
		testbed.Must(t, err)
		for _, m := range s.GetStatus().GetMounts() {
			if listed[m.GetImage().GetImage()] != nil {
				used[m.GetImage().GetImage()] = true
			}
		}
	}
	now := time.Now()
	for id, image := range listed {
		r := c.records[id]
		if r == nil {
			r = &imageRecord{detected: now}
			c.records[id] = r
		}
		if used[id] {
			r.used = now
		}
		r.size, r.pinned = image.GetSize(), image.GetPinned()
	}
	for id := range c.records {
		if listed[id] == nil {
			delete(c.records, id)
		}
	}
	return used
}

// free frees so many bytes, and returns the images that went.
func (c *collector) free(t *testing.T, bytes uint64) (gone []string) {
	t.Helper()
	used := c.detect(t)
	var order []string
	for id, r := range c.records {
		if !used[id] && !r.pinned {
			order = append(order, id)
		}
	}
	slices.SortFunc(order, func(a, b string) int {
		one, other := c.records[a], c.records[b]
		return cmp.Or(one.used.Compare(other.used), one.detected.Compare(other.detected), cmp.Compare(a, b))
	})
	var freed uint64
	for _, id := range order {
		if freed >= bytes {
			break
		}
		if err := remove(t, c.client, id); err != nil {
			t.Errorf("collect %s: %v", id, err)
			continue
		}
		gone = append(gone, id)
		freed += c.records[id].size
		delete(c.records, id)
	}
	return gone
}

func collection(t *testing.T, s *shop) {
	gc := &collector{client: s.Client, records: map[string]*imageRecord{}}
	gc.free(t, math.MaxUint64) // what other checks have left

	run := func(handler, name string) *testbed.Pod {
		return s.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: name, Command: []string{"sleep", "3600"}})
	}
	here, there, both := s.push(t, "here:1"), s.push(t, "there:1"), s.push(t, "both:1")
	run("", here)
	run("legacy", there)
	run("inner", both)
	s.Client.Pull(t, "runc", both)
	volume := s.push(t, "mounted:1")
	mounted := s.Client.Pull(t, "runc", volume)
	s.Client.Pull(t, "legacy", volume)
	pod := s.pod(t, "legacy")
	if _, err := create(t, s.Client, pod, "main", idOf(t, s.Client, "legacy", there), there, func(c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/volume", Readonly: true, Image: &runtimeapi.ImageSpec{Image: mounted, UserSpecifiedImage: volume}})
	}); err != nil {
		t.Fatal(err)
	}

	oldest := s.Client.Pull(t, "legacy", s.push(t, "unused:1"))
	gc.detect(t)
	unused := []string{s.Client.Pull(t, "runc", s.push(t, "unused:2"))}
	everywhere := s.push(t, "unused:3")
	for _, handler := range []string{"runc", "legacy", "inner"} {
		unused = append(unused, s.Client.Pull(t, handler, everywhere))
	}
	if gone := gc.free(t, 1); !slices.Equal(gone, []string{oldest}) {
		t.Errorf("collected %q, and the oldest is %s", gone, oldest)
	}
	s.isIn(t, oldest, "")
	unused = slices.Compact(unused)
	gone := gc.free(t, math.MaxUint64)
	if slices.Sort(gone); !slices.Equal(gone, slices.Sorted(slices.Values(unused))) {
		t.Errorf("collected %q, want %q", gone, unused)
	}
	for _, id := range unused {
		s.isIn(t, id, "")
	}
	for name, want := range map[string]string{here: "runc", there: "legacy", both: "runc inner", mounted: "runc legacy"} {
		s.isIn(t, name, want)
	}

	// An image that two stores have is collected from both when no container uses it.
	lent := s.push(t, "lent:1")
	id := s.Client.Pull(t, "runc", lent)
	borrower := s.pod(t, "legacy")
	if _, err := pull(t, s.Client, borrower, lent); err != nil {
		t.Error(err)
	}
	if _, err := create(t, s.Client, borrower, "main", id, lent); err != nil {
		t.Fatal(err)
	}
	if gone := gc.free(t, math.MaxUint64); len(gone) > 0 {
		t.Errorf("collected %q although it is in use", gone)
	}
	s.isIn(t, id, "runc legacy")
	borrower.Remove(t)
	if gone := gc.free(t, math.MaxUint64); !slices.Equal(gone, []string{id}) {
		t.Errorf("collected %q, want %s", gone, id)
	}
	s.isIn(t, id, "")
	if got := idOf(t, s.Client, "", lent); got != "" {
		t.Errorf("what was collected is there as %s", got)
	}
	if _, err := pull(t, s.Client, s.pod(t, "legacy"), lent); err != nil {
		t.Error(err)
	}
	s.isIn(t, lent, "legacy")
}
