// SPDX-License-Identifier: Apache-2.0

package unit_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/integration/exchangetest"
	"github.com/metalplug/metalplug/integration/leak"
)

// TestMain makes the test binary act as the helper, under its name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != unit.Program {
		os.Exit(leak.Main(m))
	}
	run := func(ctx context.Context, template, instance string) error {
		switch template {
		case "hangs@.service":
			<-ctx.Done()
			return ctx.Err()
		case "fails@.service":
			return errors.New("run it: failed: exit-code, status 3")
		}
		end, _ := ctx.Deadline()
		return os.WriteFile(os.Getenv("METALPLUG_CONFIG")+".ran", []byte(template+" "+instance+" "+time.Until(end).Round(time.Hour).String()), 0o600)
	}
	os.Exit(exchange.Main(unit.Program, "is for tests.\n", os.Args[1:], unit.Helper{File: exchange.ConfigFile("/nonexistent"), Run: run}.Serve))
}

const configuration = `
[[resource]]
name = "example.org/widget"
class = "node"
match = { DEVNAME = "/dev/widget*" }
[resource.units]
init = "fails@.service"
start = "vendor-start@.service"
release = "hangs@.service"

[[resource]]
name = "example.org/plain"
class = "node"
match = { DEVNAME = "/dev/plain*" }
`

// helper returns a client whose helper is a child process, and the file that the helper writes when it runs a unit.
func helper(t *testing.T, text string) (client unit.Client, ran string) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(own), unit.Program)
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(link) })
	file := filepath.Join(t.TempDir(), "metalplug.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return unit.Client{Peer: exchange.Peer{Program: unit.Program, Socket: exchange.Direct, Config: file}}, file + ".ran"
}

func TestRunConfiguredUnit(t *testing.T) {
	client, ran := helper(t, configuration)
	if err := client.Run(t.Context(), "example.org/widget", unit.Start, "node-widget0"); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(ran); string(text) != "vendor-start@.service node-widget0 1h0m0s" {
		t.Errorf("the helper ran %q", text)
	}
	if err := client.Run(t.Context(), "example.org/widget", unit.Init, "node-widget0"); err == nil || err.Error() != "run it: failed: exit-code, status 3" {
		t.Errorf("of a unit that fails: %v", err)
	}
}

// TestRefusals sends the requests of a compromised metalplugd. None of them may run anything.
func TestRefusals(t *testing.T) {
	client, ran := helper(t, configuration)
	valid := unit.Request{Resource: "example.org/widget", Stage: unit.Start, Device: "node-widget0", TimeoutMS: 1000}
	with := func(change func(*unit.Request)) string {
		r := valid
		change(&r)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	whole := with(func(*unit.Request) {})
	for _, c := range []struct{ name, request, want string }{
		{"another resource", with(func(r *unit.Request) { r.Resource = "example.org/other" }), "does not set units.start for example.org/other"},
		{"no resource", with(func(r *unit.Request) { r.Resource = "" }), "does not set units.start for "},
		{"a resource without units", with(func(r *unit.Request) { r.Resource = "example.org/plain" }), "does not set units.start for example.org/plain"},
		{"a unit for a stage", with(func(r *unit.Request) { r.Stage = "vendor-start@.service" }), "does not set units.vendor-start@.service for "},
		{"a stage in upper case", with(func(r *unit.Request) { r.Stage = "Start" }), "does not set units.Start for "},
		{"a shell in the device", with(func(r *unit.Request) { r.Device = "x; reboot" }), "not a metalplug device ID"},
		{"a path as device", with(func(r *unit.Request) { r.Device = "../../x" }), "not a metalplug device ID"},
		{"a long device", with(func(r *unit.Request) { r.Device = strings.Repeat("x", 59) }), "not a metalplug device ID"},
		{"no device", with(func(r *unit.Request) { r.Device = "" }), "not a metalplug device ID"},
		{"no time", with(func(r *unit.Request) { r.TimeoutMS = 0 }), "invalid timeout_ms 0"},
		{"too much time", with(func(r *unit.Request) { r.TimeoutMS = 1 << 60 }), "invalid timeout_ms"},
		{"an unknown field", strings.Replace(whole, "{", `{"unit":"ssh.service",`, 1), `unknown field "unit"`},
		{"a request after the request", whole + whole, "bytes after the JSON value"},
		{"half a request", whole[:len(whole)/2], "unexpected EOF"},
		{"another type", `[]`, "cannot unmarshal"},
		{"binary", "\x00\xff", "invalid character"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, err := client.Peer.Ask(t.Context(), func() []byte { return []byte(c.request) })
			if err != nil || !strings.Contains(string(answer), strings.ReplaceAll(c.want, `"`, `\"`)) {
				t.Errorf("answer %s, %v; want %q", answer, err, c.want)
			}
		})
	}
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("the helper ran %q", text)
	}
}

func TestBadConfigurationRunsNothing(t *testing.T) {
	client, ran := helper(t, configuration+"\nnonsense = 1\n")
	err := client.Run(t.Context(), "example.org/widget", unit.Start, "node-widget0")
	if err == nil || !strings.Contains(err.Error(), "read the configuration: ") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Run = %v", err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the helper ran a unit")
	}
}

// TestDeadline checks that a unit gets as much time as its caller has, and that a timeout is reported.
func TestDeadline(t *testing.T) {
	client, _ := helper(t, configuration)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := client.Run(ctx, "example.org/widget", unit.Release, "node-widget0"); err == nil || err.Error() != "context deadline exceeded" {
		t.Errorf("Run = %v, want the answer of the helper", err)
	}
}

// TestCancel checks that a daemon can stop without waiting for the unit.
func TestCancel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "unit.sock")
	asked := make(chan struct{})
	exchangetest.Listen(t, path, func(fd int) {
		_, _ = unix.Read(fd, make([]byte, exchange.MessageSize))
		close(asked)
		_, _ = unix.Read(fd, make([]byte, 1)) // blocks until the other end is closed
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	err := unit.Client{Peer: exchange.Peer{Program: unit.Program, Socket: path}}.Run(ctx, "example.org/widget", unit.Start, "node-widget0")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want %v", err, context.Canceled)
	}
}

func TestInvalidAnswer(t *testing.T) {
	for answer, want := range map[string]string{
		`{"error":"","more":1}`: "unknown field", `{`: "unexpected EOF", `{} {}`: "bytes after the JSON value",
	} {
		path := filepath.Join(t.TempDir(), "unit.sock")
		exchangetest.Listen(t, path, func(fd int) {
			_, _ = unix.Read(fd, make([]byte, exchange.MessageSize))
			_ = unix.Sendto(fd, []byte(answer), 0, nil)
		})
		err := unit.Client{Peer: exchange.Peer{Program: unit.Program, Socket: path}}.Run(t.Context(), "example.org/widget", unit.Start, "node-widget0")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
	}
}

func TestMounts(t *testing.T) {
	const ofResource, ofClaim = "metalplug.example.org_x.json", "metalplug-claim_0f5c.json"
	const cdi = "\n[[resource]]\nname = \"example.org/cdi\"\nclass = \"node\"\nmatch = { DEVNAME = \"/dev/x\" }\ninject = \"cdi\"\n"
	for _, c := range []struct {
		name, text, left string
		want             bool
	}{
		{"no resource uses CDI", configuration, "", false},
		{"one does", cdi, "", true},
		{"one is for claims", strings.Replace(cdi, `inject = "cdi"`, `serve = "dra"`, 1), "", true},
		{"one names devices of another's spec", cdi + "cdi_kind = \"vendor.org/x\"\n", "", false},
		{"a resource's spec is left", configuration, ofResource, false},
		{"a claim's spec is left", configuration, ofClaim, true},
		{"a spec is there", cdi, ofResource, true},
		{"the configuration is wrong", cdi + "nonsense = 1\n", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := t.TempDir()
			file, dir, specs := filepath.Join(base, "m.toml"), filepath.Join(base, "mounts"), filepath.Join(base, "cdi")
			if err := os.WriteFile(file, []byte("[paths]\ncdi = \""+specs+"\"\n"+c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.left != "" {
				if err := errors.Join(os.Mkdir(specs, 0o755), os.WriteFile(filepath.Join(specs, c.left), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // once for each start
				err := unit.Mounts(file, dir, specs)
				if (err != nil) != strings.Contains(c.text, "nonsense") {
					t.Error(err)
				}
				to, _ := os.Readlink(filepath.Join(dir, "cdi"))
				if (to == specs) != c.want {
					t.Errorf("the link leads to %q, want one: %t", to, c.want)
				}
				if _, err := os.Stat(filepath.Join(specs, c.left)); c.left != "" && (err == nil) != c.want {
					t.Errorf("the spec: %v", err)
				}
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil { // an empty file has paths.cdi = /run/cdi, not the directory of this test
				t.Fatal(err)
			}
			if err := unit.Mounts(file, dir, specs); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "cdi")); err == nil {
				t.Error("the link of the last start is still there")
			}
		})
	}
}
