// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/leak"
	"github.com/metalplug/metalplug/integration/need"
	"github.com/metalplug/metalplug/integration/udevtest"
)

const (
	resource = "example.org/widget"
	patience = 20 * time.Second
)

// widget returns the recording of a device with the ID node-SERIAL-widget.
func widget(name, serial string) string {
	return fmt.Sprintf("P: /devices/virtual/widget/%[1]s\nN: %[1]s\nE: DEVNAME=/dev/%[1]s\nE: SUBSYSTEM=widget\n"+
		"E: ID_SERIAL=%[2]s\nE: ID_SERIAL_SHORT=%[2]s\nE: MAJOR=240\nE: MINOR=0\nA: sick=0\n\n", name, serial)
}

// bench is a control socket for a simulated node.
type bench struct {
	api.Client
	t         testing.TB
	machine   *udevtest.Machine
	inventory *inventory.Inventory
	server    *control.Server
	dir       string
	stop      func() // stops the server and the inventory
}

func start(t testing.TB, recording string, changes ...func(*control.Options)) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp") // short, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, machine: udevtest.New(t, recording), dir: dir, Client: api.Client{Socket: filepath.Join(dir, "c.sock")}}
	c := &config.Config{Hardware: config.Hardware{}, Resources: []config.Resource{{
		Name: resource, Class: device.NodeName, Match: map[string]string{"SUBSYSTEM": "widget"}, Exclude: map[string]string{"ID_SERIAL": "out"},
		Shares: 2, Reset: config.ResourceReset{Scrub: "zero"},
	}}}
	root, log := b.machine.Root(), slog.New(slog.NewTextHandler(testWriter{t}, nil))
	if _, fuzz := t.(*testing.F); fuzz { // a fuzz target must not log to its testing.F
		log = slog.New(slog.DiscardHandler)
	}
	host := &device.Host{Tree: sysfs.At(root)}
	b.inventory = inventory.New(inventory.Options{
		Source: b.machine, Host: host, Rules: c.Rules(), Log: log, Store: statefile.Open(t.TempDir(), log),
		Settle: time.Hour, // the first snapshot has all devices, even on a busy machine
	})
	o := control.Options{
		Version: "1.2", Started: time.Now(), Inventory: b.inventory, Host: host, Log: log, Source: b.machine,
		Config: new(atomic.Pointer[config.Config]), Unwritten: func() []string { return nil },
		Registrations: func() map[string]api.Registration {
			return map[string]api.Registration{resource: {Registered: true, Connected: true}}
		},
	}
	o.Config.Store(c)
	for _, change := range changes {
		change(&o)
	}
	b.server = control.New(o)
	b.run()
	return b
}

func (b *bench) run() {
	b.t.Helper()
	l, err := control.Listen(b.Socket)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- b.inventory.Run(ctx) }()
	go func() { done <- b.server.Serve(ctx, l) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			b.t.Errorf("run: %v", err)
		}
	})
	b.t.Cleanup(func() {
		b.stop()
		os.RemoveAll(b.dir)
	})
	<-b.inventory.Ready()
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// waitSnapshot waits for a snapshot that meets a condition.
func (b *bench) waitSnapshot(what string, is func(*inventory.Snapshot) bool) {
	b.t.Helper()
	limit := time.After(patience)
	for {
		snapshot, changed := b.inventory.Snapshot()
		if is(snapshot) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			b.t.Fatalf("never: %s", what)
		}
	}
}

// get sends a request and decodes the answer. An error ends the test.
func get[T any](b *bench, path string) (answer T) {
	b.t.Helper()
	if err := b.Get(b.t.Context(), path, &answer); err != nil {
		b.t.Fatalf("%s: %v", path, err)
	}
	return answer
}

// code returns the HTTP status code of a refusal.
func code(err error) int {
	var refused *api.Refused
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}

const alpha = "node-A-widget"

func machine() string {
	return widget("widget0", "A") + widget("widget1", "out") + widget("widget2", "B")
}

func TestDeviceFieldNames(t *testing.T) {
	b := start(t, widget("widget0", "A"))
	b.server.SetHolders(map[string][]api.Pod{alpha: {{Namespace: "n", Name: "p", Container: "c"}}})
	b.inventory.Allocated(map[string][]string{alpha: {alpha}}, "")
	b.waitSnapshot("held", func(s *inventory.Snapshot) bool { return s.Find(alpha) != nil && s.Find(alpha).Held() })
	d := get[map[string]any](b, "/v1/devices/"+alpha)
	if _, err := time.Parse(time.RFC3339Nano, d["since"].(string)); err != nil {
		t.Error(err)
	}
	delete(d, "since")
	want := map[string]any{
		"id": alpha, "resource": resource, "class": "node", "health": "Healthy", "reason": "", "numaNode": -1.0,
		"sysfsPath": "/sys/devices/virtual/widget/widget0", "nodes": []any{"/dev/widget0"}, "cordoned": false,
		"allocated": map[string]any{"namespace": "n", "pod": "p", "container": "c"}, "held": true, "present": true, "state": "allocated",
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("%v\nwant\n%v", d, want)
	}
}

func TestStatus(t *testing.T) {
	b := start(t, machine())
	got := get[api.Status](b, "/v1/status")
	if got.Uptime <= 0 || got.Started.IsZero() {
		t.Errorf("uptime %v since %v", got.Uptime, got.Started)
	}
	got.Uptime, got.Started = 0, time.Time{}
	want := api.Status{
		Version: "1.2", Source: "udev", Ready: true, Devices: api.Totals{Healthy: 2}, Refused: []api.Refusal{}, Cordons: []api.CordonedDevice{},
		Configuration: api.Configuration{Files: []string{}},
		Resources: []api.Resource{{
			Name: resource, Class: "node", Shares: 2, Serve: "plugin", Scrub: "zero", Capacity: 4,
			Registration: api.Registration{Registered: true, Connected: true}, Totals: api.Totals{Healthy: 2},
		}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	b.machine.Plug(widget("widget3", "C"))
	b.waitSnapshot("C", func(s *inventory.Snapshot) bool { return s.Find("node-C-widget") != nil })
	for range 20 { // repeat the same refusal
		b.server.Endpoints().Answered(resource, "Allocate", errors.New("no more"))
	}
	got = get[api.Status](b, "/v1/status")
	if got.Events.Events != 1 || got.Events.LastEvent.IsZero() || len(got.Refused) != 1 || got.Refused[0].Reason != "no more" {
		t.Errorf("%+v", got)
	}
	if all := get[[]api.Resource](b, "/v1/resources"); len(all) != 1 || all[0].Capacity != 6 {
		t.Errorf("%+v", all)
	}
}

func TestAnswersAreNeverNull(t *testing.T) {
	b := start(t, "", func(o *control.Options) { o.Config.Store(&config.Config{}) })
	for _, path := range []string{"/v1/devices", "/v1/resources"} {
		if all := get[json.RawMessage](b, path); string(all) != "[]" {
			t.Errorf("%s: %s", path, all)
		}
	}
}

func TestRefusedRequests(t *testing.T) {
	b := start(t, machine())
	long := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		name string
		ask  func() error
		code int
		text string
	}{
		{"unknown device", func() error { return b.Get(t.Context(), "/v1/devices/none", nil) }, 404, "none"},
		{"unknown path", func() error { return b.Get(t.Context(), "/v2/devices", nil) }, 404, "Not Found"},
		{"unknown device cordoned", func() error { return b.cordon("none", "x") }, 404, "no such device"},
		{"long reason", func() error { return b.cordon(alpha, long[:201]) }, 400, "200"},
		{"huge body", func() error { return b.cordon(alpha, long) }, 413, "too large"},
		{"long login", func() error {
			return b.Post(t.Context(), "/v1/devices/"+alpha+"/cordon", api.Change{Reason: "x", Login: long[:65]}, nil)
		}, 400, "64"},
		{"long path", func() error { return b.Get(t.Context(), "/v1/devices/"+long, nil) }, 431, ""},
		{"wrong method", func() error { return b.Get(t.Context(), "/v1/devices/"+alpha+"/cordon", nil) }, 405, "Method Not Allowed"},
		{"why nothing", func() error { return b.Get(t.Context(), "/v1/why", nil) }, 400, "PCI"},
		{"why unknown", func() error { return b.Get(t.Context(), "/v1/why?what=0000:ff:00.0", nil) }, 404, "no such device"},
	} {
		if err := test.ask(); code(err) != test.code || !strings.Contains(fmt.Sprint(err), test.text) {
			t.Errorf("%s: %v, want %d with %q", test.name, err, test.code, test.text)
		}
	}
	if all := get[[]api.Device](b, "/v1/devices"); len(all) != 2 || all[0].Cordoned {
		t.Errorf("something was changed: %+v", all)
	}
}

func (b *bench) cordon(id, reason string) error {
	return b.Post(b.t.Context(), "/v1/devices/"+id+"/cordon", api.Change{Reason: reason}, new(api.Device))
}

func TestCordon(t *testing.T) {
	b := start(t, machine())
	var d api.Device
	for _, change := range []api.Change{{}, {Reason: " \n"}} {
		if err := b.Post(t.Context(), "/v1/devices/"+alpha+"/cordon", change, &d); err != nil || d.Reason != "cordoned: by the operator" {
			t.Errorf("%+v: %v, %+v", change, err, d)
		}
	}
	before := time.Now().Truncate(time.Second)
	err := b.Post(t.Context(), "/v1/devices/"+alpha+"/cordon", api.Change{Reason: "loose\ncable", Login: "ann\t"}, &d)
	if err != nil || !d.Cordoned || d.Health != "Unhealthy" || d.Reason != "cordoned: loose cable" {
		t.Errorf("%+v, %v", d, err)
	}
	name := ""
	if os.Geteuid() == 0 {
		name = "root"
	}
	want := api.Cordon{Reason: "loose cable", UID: uint32(os.Geteuid()), User: name, Login: "ann", Since: d.Cordon.Since}
	if *d.Cordon != want || d.Cordon.Since.Before(before) || d.Cordon.Since.After(time.Now()) {
		t.Errorf("%+v, want %+v", d.Cordon, want)
	}
	listed := []api.CordonedDevice{{Device: alpha, Resource: resource, Cordon: want}}
	if s := get[api.Status](b, "/v1/status"); !reflect.DeepEqual(s.Cordons, listed) {
		t.Errorf("%+v, want %+v", s.Cordons, listed)
	}
	d = api.Device{}
	if err := b.Post(t.Context(), "/v1/devices/"+alpha+"/uncordon", api.Change{DryRun: true}, &d); err == nil || !strings.Contains(err.Error(), "dry_run applies only to a reset or an adoption") {
		t.Errorf("a dry run: %v", err)
	}
	if err := b.Post(t.Context(), "/v1/devices/"+alpha+"/uncordon", api.Change{}, &d); err != nil || d.Cordoned || d.Cordon != nil || d.Health != "Healthy" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestWhy(t *testing.T) {
	b := start(t, machine()+"P: /devices/virtual/other/o\nE: SUBSYSTEM=other\n\n")
	const sys, offered = "/devices/virtual/widget/widget0", "offered as example.org/widget, Healthy"
	for what, want := range map[string]string{
		alpha: offered, alpha + "::1": offered, "/dev/widget0": offered, sys: offered, "/sys" + sys: offered, "/sys/class/widget/widget0": offered, "widget0": offered,
		"/dev/widget1":                 "not offered: no resource matches the device",
		"/sys/devices/virtual/other/o": "not offered: no class matches the device, and neither the device nor its children have a device node",
	} {
		if answer := get[api.Answer](b, "/v1/why?what="+what); len(answer.Found) != 1 || answer.Found[0].Verdict != want {
			t.Errorf("%s: %+v", what, answer)
		}
	}
	_, takeErr := b.inventory.Take(t.Context(), []string{alpha})
	_, beginErr := b.inventory.Begin(t.Context(), alpha, lease.Clear, "", func(*inventory.Current) error { return nil })
	b.inventory.End([]string{alpha}, inventory.Outcome{Event: lease.Fail, Err: errors.New("media error")})
	if err := errors.Join(takeErr, beginErr, b.cordon(alpha, "x")); err != nil {
		t.Fatal(err)
	}
	b.inventory.Allocated(map[string][]string{alpha: {alpha}}, "")
	b.machine.Unplug("/sys/devices/virtual/widget/widget0")
	b.waitSnapshot("gone", func(s *inventory.Snapshot) bool { return s.Find(alpha) != nil && !s.Find(alpha).Present })
	answer := get[api.Answer](b, "/v1/why?what="+alpha)
	if want := "belongs to example.org/widget, not available to new pods: cordoned: x; gone, held by a pod"; answer.Found[0].Verdict != want ||
		!strings.Contains(fmt.Sprint(answer.Found[0].Steps), "the last work failed: media error") {
		t.Errorf("%+v", answer)
	}
}

// TestWhySuggestsAScrub checks that the suggested resource for a disk has a scrub, even if only its name identifies the disk.
func TestWhySuggestsAScrub(t *testing.T) {
	b := start(t, "F: /proc/self/mountinfo=\nF: /proc/swaps=\n\n"+strings.ReplaceAll(widget("loop0", ""), "widget", "block"))
	if x := get[api.Answer](b, "/v1/why?what=/dev/loop0").Found[0]; !strings.Contains(x.Would, "DEVNAME = \"/dev/loop0\" }\nreset.scrub = ") {
		t.Errorf("%+v", x)
	}
}

// TestWhyDuringReload changes the configuration before the inventory has the new rules.
func TestWhyDuringReload(t *testing.T) {
	var current *atomic.Pointer[config.Config]
	b := start(t, machine()+strings.ReplaceAll(widget("other0", "o"), "SUBSYSTEM=widget", "SUBSYSTEM=other"), func(o *control.Options) { current = o.Config })
	next := *current.Load()
	next.Resources = append(slices.Clone(next.Resources), config.Resource{Name: "example.org/other", Class: device.NodeName, Match: map[string]string{"SUBSYSTEM": "other"}})
	current.Store(&next)
	verdict := func() string { return get[api.Answer](b, "/v1/why?what=/dev/other0").Found[0].Verdict }
	if got, want := verdict(), "not offered: metalplugd has not applied the last change yet; repeat the command in a few seconds"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	select {
	case <-b.inventory.SetRules(next.Rules(), nil):
	case <-t.Context().Done():
	}
	if got, want := verdict(), "offered as example.org/other, Healthy"; !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// admitAll lets every user open the sockets.
func (b *bench) admitAll(sockets ...string) {
	b.t.Helper()
	err := os.Chmod(b.dir, 0o755)
	for _, socket := range sockets {
		err = errors.Join(err, os.Chmod(socket, 0o666))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// asNobody connects as another user. The kernel records the user of this thread.
func asNobody(t *testing.T, path string) net.Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can become somebody else")
	}
	fds, errs := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, so it is never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			errs <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
		if err != nil {
			errs <- err
			return
		}
		fds <- fd
	}()
	select {
	case fd := <-fds:
		f := os.NewFile(uintptr(fd), "connection")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	case err := <-errs:
		t.Fatal(err)
		return nil
	}
}

func TestSocketIsForTheDaemonsUser(t *testing.T) {
	b := start(t, "")
	info, err := os.Stat(b.Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	file := filepath.Join(b.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Listen(file); err == nil || !strings.Contains(err.Error(), "not a socket; remove the file") {
		t.Errorf("over a file: %v", err)
	}
	stale := filepath.Join(b.dir, "stale.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	l, err := control.Listen(stale)
	if err != nil {
		t.Fatalf("over what is left over: %v", err)
	}
	l.Close()
	if _, err := control.Listen(b.Socket); err == nil || !strings.Contains(err.Error(), "another process already listens there") {
		t.Errorf("over one that is served: %v", err)
	}
}

// dial connects to the control socket.
func (b *bench) dial() net.Conn {
	b.t.Helper()
	c, err := net.Dial("unix", b.Socket)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// TestReadersLockNoOneOut connects more often than one user may, as two users with read access. The clients of one user
// never disconnect. Each new client is served, and the oldest client of the same user is disconnected.
func TestReadersLockNoOneOut(t *testing.T) {
	b := start(t, machine())
	b.admitAll(b.Socket)
	for _, connect := range []func() net.Conn{func() net.Conn { return asNobody(t, b.Socket) }, b.dial} {
		var all []net.Conn
		for range 65 {
			c := connect()
			fmt.Fprint(c, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
		if err := b.cordon(alpha, "a disk is pulled"); err != nil {
			t.Errorf("root, with %d clients: %v", len(all), err)
		}
		if _, err := io.Copy(io.Discard, all[0]); err != nil {
			t.Errorf("the oldest client: %v", err)
		}
	}
}

// TestSlowReadersNeedLittleMemory connects clients that request large answers and read nothing. All of them are clients of a
// user with read access. The answers exist one at a time, and root's client is served at once.
func TestSlowReadersNeedLittleMemory(t *testing.T) {
	var many strings.Builder
	for n := range 2000 {
		fmt.Fprintf(&many, "P: /devices/w%d\nE: SUBSYSTEM=widget\nE: DEVNAME=w%d\nE: ID_PATH=%d-%s\n\n", n, n, n, strings.Repeat("x", 40))
	}
	for _, path := range []string{"/v1/devices", "/v1/topology", "/metrics"} {
		t.Run(path, func(t *testing.T) {
			b := start(t, many.String())
			b.admitAll(b.Socket)
			begun := make(chan net.Conn, 8)
			for range cap(begun) {
				c := asNobody(t, b.Socket)
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
				go func() {
					if _, err := c.Read(make([]byte, 1)); err == nil {
						begun <- c
					}
				}()
			}
			first := <-begun
			for range 3 { // each answer takes about as long as one to another client
				if answer := exchange(t, b.dial(), "GET "+path, ""); !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
					t.Errorf("root: %.100s", answer)
				}
			}
			if len(begun) > 0 {
				t.Errorf("%d more answers have begun, although the first client does not read its answer", len(begun))
			}
			first.Close()
			(<-begun).Close()
		})
	}
}

func TestNoAnswer(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	err = (api.Client{Socket: left}).Get(t.Context(), "/v1/status", nil)
	if !errors.Is(err, api.ErrNoAnswer) || !strings.Contains(err.Error(), "no process listens") {
		t.Error(err)
	}
}

// TestMain checks that no test leaves a goroutine running.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
