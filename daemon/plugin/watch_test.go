// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/directory"
)

// TestUnwatchedIsSaidOnce: that the kubelet's directory cannot be watched is logged by the first attempt at a socket in it, and
// again after it could.
func TestUnwatchedIsSaidOnce(t *testing.T) {
	e := alone(t)
	above := filepath.Join(e.Dir, "above")
	e.Dir = filepath.Join(above, "plugins")
	e.socket.path = filepath.Join(e.Dir, "mp-x.sock")
	watcher, err := directory.Open(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	var said bytes.Buffer
	e.Watch = &Watch{Dir: e.Dir, Log: slog.New(slog.NewTextHandler(&said, nil)), watcher: watcher}
	for n := 1; n < 3; n++ {
		if err := errors.Join(os.RemoveAll(above), os.WriteFile(above, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := e.ensureSocket(); err == nil {
				t.Fatal("there is a socket below a file")
			}
		}
		want := `msg="kubelet directory not watched" err="` + e.Dir + `: not a directory"`
		if text := said.String(); strings.Count(text, want) != n || strings.Count(text, "\n") != n {
			t.Errorf("%d times a file: %s", n, text)
		}
		if err := os.Remove(above); err != nil { // it is missing, which is waited for
			t.Fatal(err)
		}
		if err := e.ensureSocket(); err == nil {
			t.Fatal("there is a socket in no directory")
		}
	}
}
