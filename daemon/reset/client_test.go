// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain lets the program of the test stand for metalplug-reset and for one that fails. It is that program when it was
// started under its name.
func TestMain(m *testing.M) {
	programs := map[string]func() error{
		Program: func() error {
			return exchange.Serve(unheldHost(exchange.ConfigFile(config.DefaultFile)).reply)
		},
		"locking": locking,
		"killed":  killing,
		"nonsense": func() error {
			return exchange.Serve(func(context.Context, int, []byte) []byte { return []byte("yes\n") })
		},
		"silent": func() error { return nil },
	}
	serve, ok := programs[filepath.Base(os.Args[0])]
	if !ok {
		os.Exit(leak.Main(m))
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// asChild returns a client that starts a program for each request.
func asChild(t *testing.T, program string) Client {
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
	return Client{Peer: exchange.Peer{Program: program, Socket: exchange.Direct}}
}

// TestClient receives each answer of the program.
func TestClient(t *testing.T) {
	a, err := asChild(t, Program).Do(t.Context(), Request{Do: Probe, Class: "node", SysPath: "/sys/devices/nothing", TimeoutMS: minute})
	want := Answer{Result: Gone, Detail: "/sys/devices/nothing is not there"}
	if err != nil || !reflect.DeepEqual(a, want) || !errors.Is(a.Err(), Gone) {
		t.Errorf("answer is %+v, %v", a, err)
	}
}

// TestClientWithoutAnswer returns an error, which says nothing of the device.
func TestClientWithoutAnswer(t *testing.T) {
	valid := Request{Do: Probe, Class: "node", SysPath: "/sys/devices/x", TimeoutMS: minute}
	none := valid
	none.TimeoutMS = 0
	missing := filepath.Join(t.TempDir(), "no.sock")
	for _, c := range []struct {
		name    string
		client  Client
		request Request
		want    string
	}{
		{"no time", asChild(t, Program), none, "timeoutMs 0: must be from 1 to 172800000"},
		{"nobody serves", Client{exchange.Peer{Program: Program, Socket: missing}}, valid, "connect to " + missing},
		{"nonsense", asChild(t, "nonsense"), valid, "ask nonsense: malformed message"},
		{"no word", asChild(t, "silent"), valid, "ask silent: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := c.client.Do(t.Context(), c.request)
			if err == nil || !strings.Contains(err.Error(), c.want) || !reflect.DeepEqual(a, Answer{}) {
				t.Errorf("Do = %+v, %v; want an error with %q", a, err, c.want)
			}
		})
	}
}

// TestTheKernel uses the real kernel as far as files go.
func TestTheKernel(t *testing.T) {
	k := theKernel()
	file := filepath.Join(t.TempDir(), "attribute")
	if err := os.WriteFile(file, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.write(file, "new"); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); string(got) != "new\n" || err != nil {
		t.Errorf("it reads %q, %v: written over in one go, not truncated", got, err)
	}
	link := file + "-link"
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := k.write(link, "x"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link was written through: %v", err)
	}
	if _, err := k.open(link, unix.O_RDONLY); err != unix.ELOOP {
		t.Errorf("a link was followed: %v", err)
	}
	fd, err := k.open(file, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close(fd)
	if n, err := k.node(fd); err == nil {
		t.Errorf("a file is the node %+v", n)
	}
	null, err := k.open("/dev/null", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close(null)
	if n, err := k.node(null); err != nil || n != (node{false, "1:3"}) {
		t.Errorf("/dev/null is %+v, %v", n, err)
	}
}

// unheldHost returns this machine with no process that has a device open. Where tests run, not each process can be read.
func unheldHost(file string) *host {
	h := newHost(file)
	h.holders = func(context.Context, config.Config, []cgroup.Number) (cgroup.Answer, error) {
		return cgroup.Answer{}, nil
	}
	return h
}
