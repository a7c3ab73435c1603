// Package reserve keeps what must not be given out twice: names of sandboxes and
// containers, and the categories of SELinux labels. It remembers nothing over a
// restart; who recovers reserves again. All methods may be called at the same time.
package reserve
