package conformance_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"k8s.io/klog/v2"
)

// TestMain lets more checks run at once than the machine has processors, unless
// -parallel says how many: most of the time a check waits. The Kubernetes client
// logs every session that a check breaks, which says nothing.
func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(klog.Logger{})
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
