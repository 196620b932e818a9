//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/metalplug/metalplug/integration/need"
)

// self is the import path of this package.
const self = "github.com/metalplug/metalplug/integration/vm"

// Need ends the test because a requirement is missing. The test fails if the environment variable INTEGRATION_NEED lists the
// name of the requirement. Otherwise it is skipped.
func Need(t testing.TB, name string, missing error) {
	t.Helper()
	if missing == nil {
		return
	}
	need.Lacks(t, name, "need %s: %v", name, missing)
}

// Build compiles a program of this repository and returns its path. dir is a folder below the repository's root
// ("cmd/metalplugd"), possibly in another module. A static program does not use cgo. Other programs need a machine whose C
// library is at least as new as this host's. Programs share compiled packages, so Build compiles one program at a time.
func Build(t testing.TB, dir string, static bool) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), filepath.Base(dir))
	c := exec.Command("go", "build", "-tags", "integration", "-ldflags", "-s -w", "-o", program)
	if strings.HasPrefix(dir, "integration/devicemanager") || dir == "integration/kubelet" {
		c.Args = append(c.Args, "-gcflags=all=-dwarf=false -l") // KUBERNETES in the Makefile
	}
	c.Dir = filepath.Join(root, dir)
	c.Env = append(os.Environ(), "CGO_ENABLED=1")
	if static {
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", dir, err, out)
	}
	return program
}

var building sync.Mutex

// repository returns the root folder of the checkout.
func repository() (string, error) {
	out, err := output("go", "list", "-tags", "integration", "-f", "{{.Dir}}", self)
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return filepath.Dir(filepath.Dir(out)), nil
}

// image returns the folder with disk, kernel and initrd of a machine with these additional packages. It builds them if
// the cache has none.
func image(packages []string) (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	more := strings.TrimSpace(os.Getenv("METALPLUG_VM_PACKAGES") + " " + strings.Join(packages, " "))
	dir, err := output("env", "METALPLUG_VM_PACKAGES="+more, filepath.Join(root, "integration", "vm", "image.sh"))
	if err != nil {
		return "", fmt.Errorf("build the machine's image: %w", err)
	}
	return dir, nil
}

// output runs a command and returns its standard output without the final newline. The error includes the standard
// error of the command.
func output(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if err != nil && stderr.Len() > 0 {
		err = errors.Join(err, errors.New(strings.TrimSpace(stderr.String())))
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", filepath.Base(name), err)
	}
	return strings.TrimSpace(stdout.String()), nil
}

// withAgent returns the image's initrd with the agent and its unit, which the initrd copies to /run of the machine.
func withAgent(initrd, agent string) ([]byte, error) {
	base, err := os.ReadFile(initrd)
	if err != nil {
		return nil, fmt.Errorf("read the initrd: %w", err)
	}
	program, err := os.ReadFile(agent)
	if err != nil {
		return nil, fmt.Errorf("read the agent: %w", err)
	}
	const units = "payload/run/systemd/system"
	return append(base, cpio([]entry{
		{name: "payload", mode: modeDir},
		{name: "payload/run", mode: modeDir},
		{name: "payload/run/vm", mode: modeDir},
		{name: "payload/run/vm/agent", mode: modeProgram, body: program},
		{name: "payload/run/systemd", mode: modeDir},
		{name: units, mode: modeDir},
		{name: units + "/vm-agent.service", mode: modeFile, body: []byte(agentUnit)},
		{name: units + "/multi-user.target.wants", mode: modeDir},
		{name: units + "/multi-user.target.wants/vm-agent.service", mode: modeLink, body: []byte("../vm-agent.service")},
	})...), nil
}

const (
	agentPort = "metalplug.vm"
	agentUnit = `[Unit]
Description=Agent of the integration tests

[Service]
ExecStart=/usr/bin/env /run/vm/agent /dev/virtio-ports/` + agentPort + `
KillMode=process
Environment=HOME=/root
`
)
