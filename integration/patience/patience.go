// Package patience is how long tests wait for what happens by itself. On a machine
// where everything takes longer, because it is emulated, that is longer by as much:
// BERTH_TEST_SLOWNESS says how many times, and whoever sets it has measured it.
package patience

import (
	"os"
	"strconv"
	"sync"
	"time"
)

const variable = "BERTH_TEST_SLOWNESS"

// Most keeps a measurement that went wrong from waiting for hours.
const Most = 20

// Slowness is how many times longer than elsewhere things take here; 1 if nobody says.
var Slowness = sync.OnceValue(func() float64 { return parse(os.Getenv(variable)) })

func parse(text string) float64 {
	slowness, err := strconv.ParseFloat(text, 64)
	if err != nil || !(slowness > 1) { // nor is what is no number
		return 1
	}
	return min(slowness, Most)
}

// Of is how long to wait here for what elsewhere takes no longer than that.
func Of(elsewhere time.Duration) time.Duration {
	return time.Duration(float64(elsewhere) * Slowness())
}
