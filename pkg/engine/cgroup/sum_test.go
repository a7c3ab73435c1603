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
		t.Errorf("nothing uses %+v", got)
	}
}

// A field that is added to Stats must be added up too.
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
