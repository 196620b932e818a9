// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEvents(t *testing.T) {
	recording := bundledText(t, "gpu-server")
	n := newNode(t, recording, "")
	text, objects := n.follow("events"), n.follow("events", "-o", "json")
	text.waitText("listening")
	objects.waitText(`"event":"listening"`)
	k := n.connect(nvmeName)
	text.waitText("connected", nvmeName)
	if _, _, stderr := n.ctl("cordon", lastDisk, "-r", "x"); stderr != "" {
		t.Fatal(stderr)
	}
	text.waitText("cordoned", lastDisk, "- x")
	objects.waitText(`"event":"cordoned"`, `"id":"`+lastDisk+`"`, `"cordoned":true`)
	if _, _, stderr := n.ctl("uncordon", lastDisk); stderr != "" {
		t.Fatal(stderr)
	}
	text.waitText("uncordoned", lastDisk)
	if _, err := k.Allocate(t.Context(), nvmeName, 1); err != nil {
		t.Fatal(err)
	}
	text.waitText("allocated", "to a pod")
	at := strings.Index(recording, "P: /devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0\n")
	end := at + strings.Index(recording[at:], "\n\n") + 2
	n.plug(recording[:at] + recording[end:])
	text.waitText("gone", "GPU-6513270e-269e-4d37-b2a7-4de452e6b438")
	k.Stop()
	text.waitText("disconnected", nvmeName)
	n.hangup <- nil
	text.waitText("reloaded", "the configuration")
	valid, err := os.ReadFile(n.path("t.toml"))
	if err := errors.Join(err, os.WriteFile(n.path("t.toml"), []byte("nonsense = 1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	n.hangup <- nil
	text.waitText("refused", "the previous one still applies", "t.toml:1: nonsense: unknown key")
	text.cancel()
	if code := <-text.code; code != exitOK {
		t.Errorf("interrupted: exit %d: %s", code, &text.stderr)
	}
	n.stop()
	if err := os.WriteFile(n.path("t.toml"), valid, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	objects.waitText(`"event":"listening"`)
	objects.cancel()
	code, said := <-objects.code, objects.stderr.String()
	if code != exitOK || strings.Count(said, "\n") != 1 || !strings.Contains(said, "does not answer: "+n.socket()) || !strings.Contains(said, "; waiting for the daemon\n") {
		t.Errorf("after a restart of the daemon: exit %d: %s", code, said)
	}
}

// TestWatch checks that a program gets every state as JSON. A pipe and --once get one state.
func TestWatch(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	for _, args := range [][]string{{"watch"}, {"watch", "--once"}} {
		code, stdout, stderr := n.ctl(args...)
		if code != exitOK || stderr != "" || strings.Count(stdout, "DEVICE") != 1 || !strings.HasPrefix(stdout, nvmeName+"        7 of 7 healthy; ") {
			t.Errorf("%q: exit %d, %s\n%s", args, code, stderr, stdout)
		}
	}
	objects := n.follow("watch", "-o", "json")
	objects.waitText(lastDisk, `"cordoned":false`)
	if _, _, stderr := n.ctl("cordon", lastDisk); stderr != "" {
		t.Fatal(stderr)
	}
	objects.waitText(lastDisk, `"cordoned":true`)
	objects.cancel()
	if code := <-objects.code; code != exitOK {
		t.Errorf("exit %d: %s", code, &objects.stderr)
	}
}

// serveAnswers starts a server in place of metalplugd. It encodes an answer for each path.
func serveAnswers(t *testing.T, answers map[string]any) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if text, ok := answer.(raw); ok {
			io.WriteString(w, string(text))
			return
		}
		json.NewEncoder(w).Encode(answer)
	})}
	go server.Serve(l) // returns when the server is closed
	t.Cleanup(func() {
		server.Close()
		os.RemoveAll(dir)
	})
	return socket
}
