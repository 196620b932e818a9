// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// TestGRPCLog checks that gRPC writes to a log that does not wait for its reader. It runs in a separate process.
func TestGRPCLog(t *testing.T) {
	const child = "METALPLUG_TEST_GRPC_LOG"
	if os.Getenv(child) != "" {
		plugin.LogTo(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug})))
		grpclog.Component("core").Error("connection lost")
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestGRPCLog$")
	c.Env = append(os.Environ(), child+"=1")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil || stderr.Len() > 0 || !strings.Contains(string(out), "connection lost") {
		t.Errorf("%v: %q, and on standard error %q", err, out, stderr.String())
	}
}
