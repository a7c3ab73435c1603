// Package streaming tests the streaming server with client-go's exec, attach and port-forward
// clients, and with clients that violate the protocols. It runs with the race detector (make unit).
package streaming
