// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	library "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/cdi"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// The nodes are those of this machine, because the library inspects them.
const (
	null = `P: /devices/virtual/mem/null
N: null
S: thing/by-id/null-link
E: DEVNAME=/dev/null
E: DEVLINKS=/dev/thing/by-id/null-link
E: SUBSYSTEM=mem
E: MAJOR=1
E: MINOR=3

`
	zero = `P: /devices/virtual/mem/zero
N: zero
E: DEVNAME=/dev/zero
E: SUBSYSTEM=mem
E: MAJOR=1
E: MINOR=5

`
	resource = "example.org/thing"
	file     = "metalplug.example.org_thing.json"
)

var thing = config.Resource{Name: resource, Permissions: "rw", Inject: config.InjectCDI}

// bench has specs for a machine with a few devices.
type bench struct {
	t         *testing.T
	dir       string
	machine   *udevtest.Machine
	inventory *inventory.Inventory
	specs     *cdi.Specs
	log       bytes.Buffer
}

func newBench(t *testing.T, hardware string) *bench {
	t.Helper()
	b := &bench{t: t, dir: filepath.Join(t.TempDir(), "cdi"), machine: udevtest.New(t, hardware)}
	host := &device.Host{Tree: sysfs.At(b.machine.Root())}
	log := slog.New(slog.DiscardHandler)
	b.inventory = inventory.New(inventory.Options{
		Source: b.machine, Host: host, Grace: time.Nanosecond, Store: statefile.Open(t.TempDir(), log), Log: log,
		Rules: []device.Rule{{Resource: resource, Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "mem"}}},
	})
	b.specs = &cdi.Specs{Dir: b.dir, Inventory: b.inventory, Host: host, Log: slog.New(slog.NewTextHandler(&b.log, nil))}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.inventory.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-b.inventory.Ready()
	b.specs.Set([]config.Resource{thing})
	return b
}

// devices waits until the inventory has n present devices, and returns them.
func (b *bench) devices(n int) []*inventory.Status {
	b.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		snapshot, changed := b.inventory.Snapshot()
		devices := slices.Clone(snapshot.Offer(resource).Devices)
		devices = slices.DeleteFunc(devices, func(d *inventory.Status) bool { return !d.Present })
		if len(devices) == n {
			return devices
		}
		select {
		case <-changed:
		case <-limit:
			b.t.Fatalf("there are %d devices", len(devices))
		}
	}
}

// allocate makes a pod hold a device.
func (b *bench) allocate(id string) {
	b.t.Helper()
	b.inventory.Allocated(map[string][]string{id: {id}}, "")
	b.inventory.Confirm(kubelet.Answer{Written: time.Now(), Booked: map[string][]string{id: {"A"}}})
	b.waitFor("the device is not held", func() bool {
		snapshot, _ := b.inventory.Snapshot()
		return snapshot.Offer(resource).Find(id).Held()
	})
}

func (b *bench) waitFor(what string, holds func() bool) {
	b.t.Helper()
	for limit := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			b.t.Fatal(what)
		}
	}
}

// load reads the directory like a container runtime.
func (b *bench) load() *library.Cache {
	b.t.Helper()
	cache, err := library.NewCache(library.WithSpecDirs(b.dir), library.WithAutoRefresh(false))
	if err != nil {
		b.t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) > 0 {
		b.t.Fatalf("the library finds %v", errs)
	}
	return cache
}

// files returns the names of all files in the directory, including hidden ones.
func (b *bench) files() string {
	entries, _ := os.ReadDir(b.dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) update(want bool) {
	b.t.Helper()
	if ok := b.specs.Update(); ok != want {
		b.t.Fatalf("Update is %v; log:\n%s", ok, &b.log)
	}
}

func TestRuntimeInjectsSpec(t *testing.T) {
	b := newBench(t, null+zero)
	b.update(true)
	names, err := b.specs.Names(resource, b.devices(2))
	if want := []string{"metalplug.example.org/thing=node-null", "metalplug.example.org/thing=node-zero"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("names are %v, %v", names, err)
	}
	container := &specs.Spec{}
	if missing, err := b.load().InjectDevices(container, names...); err != nil {
		t.Fatalf("injection: %v, unresolved %v", err, missing)
	}
	var got []string
	for _, d := range container.Linux.Devices {
		got = append(got, d.Path)
	}
	if want := []string{"/dev/null", "/dev/zero"}; !slices.Equal(got, want) {
		t.Errorf("the container has %v", got)
	}
	null := container.Linux.Devices[0]
	if null.Type != "c" || null.Major != 1 || null.Minor != 3 {
		t.Errorf("/dev/null, described by a link, is %+v", null)
	}
	if access := container.Linux.Resources.Devices[0]; access.Access != "rw" || *access.Minor != 3 {
		t.Errorf("the container may do %+v", access)
	}
}

func TestFileModeIgnoresUmask(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	b := newBench(t, null)
	b.update(true)
	if info, err := os.Stat(filepath.Join(b.dir, file)); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if b.files() != file {
		t.Errorf("there are %s", b.files())
	}
}

// A runtime watches the directory. A change that does not concern it must not wake it up.
func TestSameContentIsNotWrittenAgain(t *testing.T) {
	b := newBench(t, null)
	b.update(true)
	before, err := os.Stat(filepath.Join(b.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	b.allocate("node-null")
	b.update(true)
	after, err := os.Stat(filepath.Join(b.dir, file))
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("it was written again: %v", err)
	}
}

func TestOnlyOurFilesAreRemoved(t *testing.T) {
	b := newBench(t, null)
	b.write("metalplug.example.org_old.json", `{"kind":"metalplug.example.org/old"}`)
	b.write(file, `{"kind":"metalplug.example.org/thing","devices":[{"name":"other"}]}`)
	b.write("metalplug-notes.json", `{"kind":"example.org/notes"}`)
	b.write("nvidia.yaml", "kind: nvidia.com/gpu")
	b.specs.Set([]config.Resource{thing})
	b.update(true)
	if want := "metalplug-notes.json " + file + " nvidia.yaml"; b.files() != want {
		t.Errorf("there are %s", b.files())
	}
	if text, err := os.ReadFile(filepath.Join(b.dir, file)); err != nil || !strings.Contains(string(text), "node-null") {
		t.Errorf("the old spec is still there: %s, %v", text, err)
	}
	b.specs.Set(nil)
	if want := "metalplug-notes.json nvidia.yaml"; b.files() != want {
		t.Errorf("after a reload there are %s", b.files())
	}
}

// A spec without devices would be an error for the runtime.
func TestLastDeviceTakesTheFileAlong(t *testing.T) {
	b := newBench(t, null)
	b.update(true)
	was := b.devices(1)
	b.machine.Apply("")
	b.devices(0)
	b.update(true)
	if b.files() != "" {
		t.Errorf("there are %s", b.files())
	}
	if _, err := b.specs.Names(resource, was); err == nil || !strings.Contains(err.Error(), "has just changed") {
		t.Errorf("the device that is gone: %v", err)
	}
}

// realNodes lets the recorded nodes lead to the nodes of this machine, which have numbers.
func (b *bench) realNodes() {
	b.t.Helper()
	for _, name := range []string{"null", "zero"} {
		node := filepath.Join(b.machine.Root(), "dev", name)
		if err := errors.Join(os.Remove(node), os.Symlink("/dev/"+name, node)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestUnknownDeviceInClaim checks that a spec of a claim keeps no nodes whose device is not known.
func TestUnknownDeviceInClaim(t *testing.T) {
	b := newBench(t, null)
	file := filepath.Join(b.dir, "metalplug-claim_1.json")
	text := `{"cdiVersion":"0.5.0","kind":"metalplug.io/claim","devices":[{"name":"1_all","containerEdits":{"deviceNodes":[{"path":"/dev/null"}]}},` +
		`{"name":"1_env","containerEdits":{"env":["A=b"]}}]}`
	if err := errors.Join(os.MkdirAll(b.dir, 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	b.update(true)
	if left, err := os.ReadFile(file); err != nil || strings.Contains(string(left), "/dev/null") || !strings.Contains(string(left), "A=b") {
		t.Errorf("the spec is %s, %v", left, err)
	}
}

// TestClaimLosesAbsentDevice checks that the spec of a claim has the numbers of the nodes, and that it lacks a device while
// the device is absent, also after a restart of the daemon.
func TestClaimLosesAbsentDevice(t *testing.T) {
	b := newBench(t, null+zero)
	request := cdi.Request{Name: "all", Admin: true, Devices: b.devices(2), Env: map[string]string{"A": "b"}}
	b.realNodes()
	for _, d := range request.Devices {
		request.Nodes = append(request.Nodes, api.GrantedNode{Container: d.Allocation.Nodes[0].Container, Permissions: "r"})
	}
	names, err := b.specs.Claim("0f5c", []cdi.Request{request})
	if err != nil || len(names) != 1 || len(names[0]) != 3 {
		t.Fatalf("names are %v, %v", names, err)
	}
	missing := func() []string {
		container := &specs.Spec{}
		missing, err := b.load().InjectDevices(container, names[0]...)
		if len(missing) > 0 {
			return missing
		}
		if null := container.Linux.Devices[0]; err != nil || null.Path != "/dev/null" || null.Major != 1 || null.Minor != 3 || container.Process.Env[0] != "A=b" {
			t.Errorf("the container is %+v, %v", container, err)
		}
		return nil
	}
	numbered := func() {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(b.dir, "metalplug-claim_0f5c.json"))
		for _, want := range []string{`"type": "c"`, `"major": 1`, `"minor": 3`} {
			if err != nil || !strings.Contains(string(text), want) {
				t.Errorf("the spec lacks %s: %s, %v", want, text, err)
			}
		}
	}
	b.update(true)
	if lacks := missing(); lacks != nil {
		t.Errorf("the spec lacks %v", lacks)
	}
	numbered()
	before, err := os.Stat(filepath.Join(b.dir, "metalplug-claim_0f5c.json"))
	if _, again := b.specs.Claim("0f5c", []cdi.Request{request}); err != nil || again != nil {
		t.Fatal(err, again)
	}
	if after, err := os.Stat(filepath.Join(b.dir, "metalplug-claim_0f5c.json")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the spec was written again: %v", err)
	}
	b.specs = &cdi.Specs{Dir: b.dir, Inventory: b.inventory, Host: b.specs.Host, Log: b.specs.Log}
	b.machine.Apply(zero)
	b.devices(1)
	b.update(true)
	if lacks := missing(); !slices.Equal(lacks, names[0][1:2]) {
		t.Errorf("without the device the spec lacks %v", lacks)
	}
	b.machine.Apply(null + zero)
	request.Devices = b.devices(2)
	b.realNodes()
	if _, err := b.specs.Claim("0f5c", []cdi.Request{request}); err != nil {
		t.Fatal(err)
	}
	b.update(true)
	if lacks := missing(); lacks != nil {
		t.Errorf("with the device the spec lacks %v", lacks)
	}
	numbered()
	b.machine.Apply(zero)
	b.devices(1)
	if err := os.RemoveAll(b.machine.Root() + "/dev/null"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.specs.Claim("0f5c", []cdi.Request{request}); err == nil {
		t.Error("the claim is prepared with an absent device")
	}
}

// TestMain fails if a test leaves anything running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
