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
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// get asks the API server, and reads the answer into a variable unless it is nil.
// That is all the client that reading needs; kubectl does the rest.
func (c *Cluster) get(path string, into any) error {
	request, err := http.NewRequest(http.MethodGet, c.server+path, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return &statusError{path: path, code: response.StatusCode, body: string(body)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// statusError is an answer of the API server that is not the one asked for.
type statusError struct {
	path string
	code int
	body string
}

func (e *statusError) Error() string { return fmt.Sprintf("GET %s: %d: %s", e.path, e.code, e.body) }

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

// kubectlCommand is a kubectl that is yet to be started.
func (c *Cluster) kubectlCommand(ctx context.Context, t testbed.T, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(ctx, testbed.Part(t, testbed.Kubectl), arguments...)
	command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "admin.kubeconfig"), "HOME="+c.dir)
	// What it started for itself may hold its pipes open.
	command.WaitDelay = 5 * time.Second
	return command
}
