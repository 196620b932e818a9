// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

const minuteMS = int64(time.Minute / time.Millisecond)

// asChild returns a client that starts a program for each request.
func asChild(t *testing.T, program string) reset.Client {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(own), program)
	if err := os.Symlink(own, link); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	return reset.Client{Peer: exchange.Peer{Program: program, Socket: exchange.Direct}}
}

// TestClient checks that the client returns each answer of the program.
func TestClient(t *testing.T) {
	a, err := asChild(t, reset.Program).Do(t.Context(), reset.Request{Do: reset.Probe, Target: device.Target{Class: "node", SysPath: "/sys/devices/nothing"}, TimeoutMS: minuteMS})
	want := reset.Answer{Result: reset.Gone, Detail: "/sys/devices/nothing does not exist"}
	if err != nil || !reflect.DeepEqual(a, want) || !errors.Is(a.Err(), reset.Gone) {
		t.Errorf("answer is %+v, %v", a, err)
	}
}

// TestClientWithoutAnswer checks that a missing answer is an error, which does not change the state of the device.
func TestClientWithoutAnswer(t *testing.T) {
	valid := reset.Request{Do: reset.Probe, Target: device.Target{Class: "node", SysPath: "/sys/devices/x"}, TimeoutMS: minuteMS}
	missing := filepath.Join(t.TempDir(), "no.sock")
	for _, c := range []struct {
		name   string
		client reset.Client
		want   string
	}{
		{"no server", reset.Client{exchange.Peer{Program: reset.Program, Socket: missing}}, "connect to " + missing},
		{"nonsense", asChild(t, "nonsense"), "read the answer of nonsense: malformed message"},
		{"no word", asChild(t, "silent"), "call silent: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := c.client.Do(t.Context(), valid)
			if err == nil || !strings.Contains(err.Error(), c.want) || !reflect.DeepEqual(a, reset.Answer{}) {
				t.Errorf("Do = %+v, %v; want an error with %q", a, err, c.want)
			}
		})
	}
}
