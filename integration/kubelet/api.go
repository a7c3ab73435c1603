package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// get sends a GET to the API server, and decodes the answer into a variable unless that is nil. The
// tests need only get and send; kubectl does the rest.
func (c *Cluster) get(path string, into any) error {
	// Not the test's context, because cleanups use this function too.
	status, body, err := c.send(context.Background(), http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return &statusError{path: path, code: status, body: string(body)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// send sends a request as the administrator, and returns the status and the body of
// the answer.
func (c *Cluster) send(ctx context.Context, method, path, contentType string, body []byte) (status int, answer []byte, err error) {
	status, _, answer, err = c.exchange(ctx, method, path, contentType, body)
	return status, answer, err
}

// exchange is send, but also returns the headers of the answer.
func (c *Cluster) exchange(ctx context.Context, method, path, contentType string, body []byte) (status int, headers http.Header, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, response.Header, answer, err
}

// statusError is an answer of the API server other than 200.
type statusError struct {
	path string
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("GET %s: %d: %s", e.path, e.code, e.body) }

// Kubectl runs kubectl as the cluster's administrator, with berth's plugin in the PATH. It must
// succeed; Kubectl returns its stdout.
func (c *Cluster) Kubectl(t testbed.T, stdin string, arguments ...string) string {
	t.Helper()
	stdout, stderr, err := c.kubectl(t, strings.NewReader(stdin), arguments...)
	if err != nil {
		t.Fatalf("kubectl %q: %v: %s", arguments, err, stderr)
	}
	return stdout
}

// commandTimeout limits a kubectl that should exit by itself.
const commandTimeout = 3 * time.Minute

// kubectl runs kubectl as the cluster's administrator.
func (c *Cluster) kubectl(t testbed.T, stdin io.Reader, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	// Not the test's context, because cleanups use this function too.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	command := c.kubectlCommand(ctx, t, arguments...)
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = stdin, &out, &problems
	err = command.Run()
	return out.String(), problems.String(), err
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// kubectlCommand returns a kubectl command that is not started yet.
func (c *Cluster) kubectlCommand(ctx context.Context, t testbed.T, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(ctx, testbed.Part(t, testbed.Kubectl), arguments...)
	command.Env = append(os.Environ(), "PATH="+testbed.Built(t)+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.dir)
	// Its child processes may hold its pipes open.
	command.WaitDelay = 5 * time.Second
	return command
}
