// Command berth-verify-sigstore is an image verifier for berth and containerd: it accepts an image
// if a policy accepts it without a signature, or if it has a cosign signature that the policy
// requires. Any failure refuses the image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
)

const (
	defaultPolicy = "/etc/berth/verify.toml"
	policyEnv     = "BERTH_VERIFY_POLICY"
	// timeout bounds the whole run. The daemon's own limit may be shorter.
	timeout = 20 * time.Second
	// maxReason bounds a reason, which may quote a registry's answer.
	maxReason = 2048
)

// Exit statuses. The protocol distinguishes only 0 and other statuses.
const (
	exitAccepted = 0
	exitRefused  = 1
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv(policyEnv), os.Stdin, os.Stdout))
}

// run decides about one image: the exit status is the decision, and one line on stdout is the
// reason.
func run(args []string, policyPath string, stdin io.Reader, stdout io.Writer) (status int) {
	status = exitRefused
	defer func() {
		// The input is untrusted, and the libraries that parse it may panic.
		if cause := recover(); cause != nil {
			status = exitRefused
			fmt.Fprintln(stdout, oneLine(fmt.Sprintf("refused: the verifier failed: %v; report it", cause)))
		}
	}()
	if policyPath == "" {
		policyPath = defaultPolicy
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	q, err := readQuestion(args, stdin)
	var reason string
	if err == nil {
		reason, err = decide(ctx, policyPath, q)
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no decision within %v: %w; check the registry and the network", timeout, err)
		}
		fmt.Fprintln(stdout, oneLine("refused: "+err.Error()))
		return exitRefused
	}
	fmt.Fprintln(stdout, oneLine("accepted: "+reason))
	return exitAccepted
}

// readQuestion parses the command line and the descriptor.
func readQuestion(args []string, stdin io.Reader) (question, error) {
	q, mediaType := question{}, ""
	flags := flag.NewFlagSet("berth-verify-sigstore", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&q.name, "name", "", "the image's name, with its registry")
	flags.StringVar(&q.digest, "digest", "", "the digest that the name stands for")
	flags.StringVar(&mediaType, "stdin-media-type", "", "the type of what is on stdin")
	if err := flags.Parse(args); err != nil {
		return q, fmt.Errorf("read the command line: %w; call it as containerd calls image verifiers", err)
	}
	if flags.NArg() > 0 || q.name == "" || q.digest == "" {
		return q, errors.New("read the command line: set -name and -digest, without further arguments; call it as containerd calls image verifiers")
	}
	if mediaType != descriptorType {
		return q, fmt.Errorf("stdin is of type %q, not %s; call it as containerd calls image verifiers", mediaType, descriptorType)
	}
	return q, q.checkDescriptor(stdin)
}

// oneLine keeps untrusted text from looking like further output lines.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
