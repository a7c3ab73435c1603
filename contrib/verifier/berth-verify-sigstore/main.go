// Command berth-verify-sigstore is an image verifier for berth and containerd: it lets
// an image be pulled if a policy accepts it, or if it has a signature of cosign's that
// the policy asks for. Whatever fails refuses the image.
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
	// timeout is for everything. The daemon may have less patience.
	timeout = 20 * time.Second
	// maxReason is what is left of a reason: it may quote a registry's answer.
	maxReason = 2048
)

// Exit statuses. The protocol knows 0 and others.
const (
	exitAccepted = 0
	exitRefused  = 1
)

func main() {
	os.Exit(run(os.Args[1:], os.Getenv(policyEnv), os.Stdin, os.Stdout))
}

// run answers one question: the exit status lets the image pass or not, and one line
// on stdout says why.
func run(args []string, policyPath string, stdin io.Reader, stdout io.Writer) (status int) {
	status = exitRefused
	defer func() {
		// What it reads was made by strangers, and so was much of what reads it.
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

// readQuestion reads the command line and the descriptor.
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
		return q, errors.New("read the command line: -name and -digest are needed and nothing else; call it as containerd calls image verifiers")
	}
	if mediaType != descriptorType {
		return q, fmt.Errorf("stdin is of type %q, not %s; call it as containerd calls image verifiers", mediaType, descriptorType)
	}
	return q, q.checkDescriptor(stdin)
}

// oneLine keeps what others wrote from looking like lines of ours.
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
