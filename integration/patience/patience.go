// Package patience scales the time limits of tests. An emulated machine is slower than others, by
// the factor in BERTH_TEST_SLOWNESS, which the program that starts the tests measures.
package patience

import (
	"os"
	"strconv"
	"sync"
	"time"
)

const variable = "BERTH_TEST_SLOWNESS"

// Most limits the factor, so that a wrong measurement does not make tests wait for hours.
const Most = 20

// Slowness is how many times slower this machine is than others; 1 if the variable is not set.
var Slowness = sync.OnceValue(func() float64 { return parse(os.Getenv(variable)) })

func parse(text string) float64 {
	slowness, err := strconv.ParseFloat(text, 64)
	if err != nil || !(slowness > 1) { // also if it is NaN
		return 1
	}
	return min(slowness, Most)
}

// Of is the time limit on this machine for a limit on other machines.
func Of(elsewhere time.Duration) time.Duration {
	return time.Duration(float64(elsewhere) * Slowness())
}
