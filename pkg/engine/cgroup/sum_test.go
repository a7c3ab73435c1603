package cgroup

import (
	"reflect"
	"testing"
	"time"
)

func TestSum(t *testing.T) {
	at := time.Now()
	a := Stats{Time: at, CPUUsageNano: known(1), MemoryUsage: known(10), RSS: known(5), MemoryLimit: known(100), CPUPressure: &Pressure{}}
	b := Stats{Time: at.Add(time.Second), CPUUsageNano: known(2), MemoryUsage: known(20), Pids: known(3)}
	for _, test := range []struct {
		name  string
		parts []Stats
		want  Stats
	}{
		{"one", []Stats{a}, Stats{Time: at, CPUUsageNano: known(1), MemoryUsage: known(10), RSS: known(5), MemoryLimit: known(100)}},
		{"two", []Stats{a, b}, Stats{Time: at, CPUUsageNano: known(3), MemoryUsage: known(30)}},
		{"three", []Stats{a, b, a}, Stats{Time: at, CPUUsageNano: known(4), MemoryUsage: known(40)}},
	} {
		if got := Sum(test.parts...); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got  %+v\nwant %+v", test.name, got, test.want)
		}
	}
	if got := Sum(); got.CPUUsageNano != known(0) || got.WorkingSet != known(0) || got.Time.Before(at) {
		t.Errorf("the sum of nothing is %+v", got)
	}
}

// Sum adds up every field of Stats, including fields that are added later.
func TestSumOfEveryValue(t *testing.T) {
	var one Stats
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		if v.Field(i).Type() == reflect.TypeFor[Value]() {
			v.Field(i).Set(reflect.ValueOf(known(1)))
		}
	}
	sum := reflect.ValueOf(Sum(one, one))
	for i := range sum.NumField() {
		if got, ok := sum.Field(i).Interface().(Value); ok && got != known(2) {
			t.Errorf("%s is %+v", sum.Type().Field(i).Name, got)
		}
	}
}

// SumDetails adds up every field of Detail, including fields that are added later, except PeakMemory.
func TestSumDetailsOfEveryValue(t *testing.T) {
	var one Detail
	v := reflect.ValueOf(&one).Elem()
	for i := range v.NumField() {
		if v.Field(i).Type() == reflect.TypeFor[Value]() {
			v.Field(i).Set(reflect.ValueOf(known(1)))
		}
	}
	one.MemoryUsage = known(10)
	one.Hugetlb = []Hugepages{{Size: "2MB", Usage: known(2), Peak: known(3)}}
	one.IO = []DeviceIO{{Device: "8:0", ReadBytes: 1, WriteBytes: 2, ReadOperations: 3, WriteOperations: 4}}
	other := one
	other.IO = []DeviceIO{{Device: "8:0", ReadBytes: 1, WriteBytes: 2, ReadOperations: 3, WriteOperations: 4}, {Device: "8:1", ReadBytes: 5}}
	sum := SumDetails(one, other)
	if sum.MemoryUsage != known(20) || sum.PeakMemory != (Value{}) {
		t.Errorf("memory %+v, peak %+v", sum.MemoryUsage, sum.PeakMemory)
	}
	if want := []Hugepages{{Size: "2MB", Usage: known(4)}}; !reflect.DeepEqual(sum.Hugetlb, want) {
		t.Errorf("huge pages %+v", sum.Hugetlb)
	}
	want := []DeviceIO{{Device: "8:0", ReadBytes: 2, WriteBytes: 4, ReadOperations: 6, WriteOperations: 8}, {Device: "8:1", ReadBytes: 5}}
	if !reflect.DeepEqual(sum.IO, want) {
		t.Errorf("io %+v", sum.IO)
	}
	if one.IO[0].ReadBytes != 1 || one.Hugetlb[0].Usage != known(2) {
		t.Errorf("SumDetails changed its argument: %+v", one)
	}
	got := reflect.ValueOf(sum)
	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		if value, ok := got.Field(i).Interface().(Value); ok && value != known(2) && name != "PeakMemory" {
			t.Errorf("%s is %+v", name, value)
		}
	}
	if none := SumDetails(); none.MemoryUsage != known(0) || none.OOMKills.Known {
		t.Errorf("the sum of nothing is %+v", none)
	}
}
