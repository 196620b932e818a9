// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

// metalplugd refuses a request of more than 16 KiB, so the driver shortens a long answer of the API server. With the driver's
// PID, doctor can see that the driver has ended since its report.
func TestReport(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"message":"` + strings.Repeat("<", 30_000) + `"}`))
	}))
	defer refusing.Close()
	dir := t.TempDir()
	kubeconfig, socket := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "s")
	if err := os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "`+refusing.URL+`"}}]
contexts: [{name: x, context: {cluster: c}}]
current-context: x
`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err := errors.Join(err, os.Mkdir(filepath.Join(dir, "plugins_registry"), 0o700)); err != nil {
		t.Fatal(err)
	}
	reports := make(chan api.Driver)
	mux := http.NewServeMux()
	answer := func(path string, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(value) })
	}
	answer("GET /v1/status", api.Status{Ready: true})
	answer("GET /v1/devices", []api.Device{})
	answer("GET /v1/events", api.Event{Event: "listening"})
	mux.HandleFunc("POST /v1/driver", func(w http.ResponseWriter, r *http.Request) {
		var report api.Driver
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<10)).Decode(&report); err != nil {
			t.Errorf("metalplugd refuses the report: %v", err)
		}
		select {
		case reports <- report:
		case <-r.Context().Done():
		}
	})
	metalplugd := &http.Server{Handler: mux}
	go metalplugd.Serve(l)
	defer metalplugd.Close()
	done := make(chan int)
	go func() {
		done <- run([]string{"--kubeconfig=" + kubeconfig, "--node=n1", "--control=" + socket, "--kubelet=" + dir}, io.Discard, io.Discard)
	}()
	for late, seen := time.After(30*time.Second), false; !seen; {
		select {
		case report := <-reports:
			if report.PID != os.Getpid() {
				t.Errorf("the report has the PID %d", report.PID)
			}
			seen = strings.Contains(report.Problem, "<<<")
		case code := <-done:
			t.Fatalf("the driver ended early with the code %d", code)
		case <-late:
			t.Error("the driver does not report the answer of the API server")
			seen = true
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitOK {
		t.Errorf("the driver ended with the code %d", code)
	}
}

// The API server would refuse each request for such a Node.
func TestInvalidNode(t *testing.T) {
	for _, node := range []string{"", "Bad_N", "a/b"} {
		var stderr strings.Builder
		code := run([]string{"--node=" + node, "--kubeconfig=/none"}, io.Discard, &stderr)
		if want := fmt.Sprintf("metalplug-dra: invalid --node %q: must be ", node); code != exitUsage || !strings.HasPrefix(stderr.String(), want) {
			t.Errorf("exit %d, %s", code, stderr.String())
		}
	}
}
