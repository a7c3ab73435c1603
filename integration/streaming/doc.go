// Package streaming has client-go's exec, attach and port-forward clients, and ones that
// break the rules, talk to the streaming server. It is run with the race detector (make unit).
package streaming
