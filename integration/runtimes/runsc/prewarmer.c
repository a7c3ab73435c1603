// Stands in for gVisor's prewarmer of sentries, whose source is not in the Go module:
//
//   gvisor-sentry-prewarmer BINARY ARGV0 [ARGV1...]
//
// It executes the binary, which is all that a pod can see of it.
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc < 3)
		return 2;
	execv(argv[1], argv + 2);
	return 127;
}
