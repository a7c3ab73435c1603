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

// get asks the API server, and reads the answer into a variable unless it is nil.
// That and send are all the client that the tests need; kubectl does the rest.
func (c *Cluster) get(path string, into any) error {
	// Not the context of the test: cleanups use it too.
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

// exchange is send with the headers of the answer, too.
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

// statusError is an answer of the API server that is not the one asked for.
type statusError struct {
	path string
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("GET %s: %d: %s", e.path, e.code, e.body) }

// Kubectl runs kubectl as the cluster's administrator, which must succeed, and
// returns what it wrote to stdout. Berth's own plugin of kubectl is there.
func (c *Cluster) Kubectl(t testbed.T, stdin string, arguments ...string) string {
	t.Helper()
	stdout, stderr, err := c.kubectl(t, strings.NewReader(stdin), arguments...)
	if err != nil {
		t.Fatalf("kubectl %q: %v: %s", arguments, err, stderr)
	}
	return stdout
}

// commandTimeout bounds a kubectl that is not meant to stay.
const commandTimeout = 3 * time.Minute

// kubectl runs kubectl as the cluster's administrator.
func (c *Cluster) kubectl(t testbed.T, stdin io.Reader, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	// Not the context of the test: cleanups use it too.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	command := c.kubectlCommand(ctx, t, arguments...)
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = stdin, &out, &problems
	err = command.Run()
	return out.String(), problems.String(), err
}

// Kubeconfig is the file by which the administrator reaches the cluster.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// kubectlCommand is a kubectl that is yet to be started.
func (c *Cluster) kubectlCommand(ctx context.Context, t testbed.T, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(ctx, testbed.Part(t, testbed.Kubectl), arguments...)
	command.Env = append(os.Environ(), "PATH="+testbed.Built(t)+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.dir)
	// What it started for itself may hold its pipes open.
	command.WaitDelay = 5 * time.Second
	return command
}
