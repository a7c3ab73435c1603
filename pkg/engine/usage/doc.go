// Package usage turns what was measured of a pod or a container into the CRI's
// messages:
//
//	stats.Cpu = usage.CPU(used, rate.Next(used.Time, used.CPUUsageNano))
//	stats.Memory = usage.Memory(used)
//
// What is not known stays nil: a 0 would be a real 0. Everything but the rate, which
// remembers one sample, is pure.
package usage
