// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

func TestEventsOnOneLine(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	disk := func(changes ...func(*api.Device)) *api.Device {
		d := &api.Device{ID: "nvme-1", Resource: "t/r", SysPath: "/sys/devices/pci0000:00/0000:00:01.0/x"}
		for _, change := range changes {
			change(d)
		}
		return d
	}
	for _, test := range []struct {
		event api.Event
		want  string
	}{
		{api.Event{Event: "added", Device: disk()}, "added         nvme-1 (t/r)"},
		{
			api.Event{Event: "unhealthy", Device: disk(func(d *api.Device) { d.Reason = "dead\n\x1b[2J" })},
			"unhealthy     nvme-1 (t/r) - dead  [2J",
		},
		{api.Event{Event: "unhealthy", Device: disk(func(d *api.Device) {
			d.Reason, d.Cordon = "cordoned: worn out; gone", &api.Cordon{Reason: "worn out", User: "root", Login: "ann", Since: at}
		})}, "unhealthy     nvme-1 (t/r) - cordoned: worn out (by ann as root, 2026-01-02 03:04:05Z); gone"},
		{
			api.Event{Event: "seen", Device: disk(func(d *api.Device) { d.ID, d.Resource, d.Reason = "", "", "no wwid" })},
			"seen          x - no wwid",
		},
	} {
		test.event.Time = at
		s := &screen{}
		s.writeEvent(test.event)
		if want := "2026-01-02 03:04:05Z  " + test.want + "\n"; s.String() != want {
			t.Errorf("%q, want %q", s, want)
		}
	}
}

func TestAllWell(t *testing.T) {
	sound := func() api.Status {
		return api.Status{Ready: true, Resources: []api.Resource{
			{Name: "t/r", Totals: api.Totals{Healthy: 1}, Registration: api.Registration{Connected: true}}, {Name: "t/none", Optional: true},
		}}
	}
	for name, test := range map[string]struct {
		spoil func(*api.Status)
		well  bool
	}{
		"sound":                       {func(*api.Status) {}, true},
		"cordoned":                    {func(s *api.Status) { s.Devices.Unhealthy, s.Devices.Cordoned = 2, 2 }, true},
		"sick":                        {func(s *api.Status) { s.Devices.Unhealthy, s.Devices.Cordoned = 2, 1 }, false},
		"not ready":                   {func(s *api.Status) { s.Ready = false }, false},
		"not connected":               {func(s *api.Status) { s.Resources[0].Connected = false }, false},
		"a default with a device":     {func(s *api.Status) { s.Resources[1].Unhealthy = 1 }, false},
		"held back":                   {func(s *api.Status) { s.Resources[0].Connected, s.Resources[0].Held = false, "x" }, true},
		"a file is not written":       {func(s *api.Status) { s.Unwritten = []string{"x"} }, false},
		"the reload has been refused": {func(s *api.Status) { s.Configuration.Problem = "x" }, false},
	} {
		s := sound()
		test.spoil(&s)
		if got := allWell(s); got != test.well {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStatusOfADaemonInTrouble(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	last := now.Add(-time.Hour)
	s := &screen{}
	s.writeStatus(api.Status{
		Version: "1.0", Uptime: 90, Source: "udev",
		Configuration: api.Configuration{Files: []string{"/etc/a.toml", "/etc/b.toml"}, Problem: "/etc/b.toml:3: nonsense: unknown key"},
		Devices:       api.Totals{Healthy: 1, Unhealthy: 2, Cordoned: 1, Allocated: 1, NotOffered: 4},
		Events:        api.Counts{Events: 12, LastEvent: last, Overflows: 1, Resyncs: 2},
		Unwritten:     []string{"state not saved: no space left on device"},
		Resources: []api.Resource{
			{Name: "t/r", Totals: api.Totals{Healthy: 1, Unhealthy: 2}},
			{Name: "t/none", Optional: true},
			{Name: "t/held", Optional: true, Totals: api.Totals{Healthy: 2}, Registration: api.Registration{Held: "another plugin serves t/held"}},
		},
		Cordons: []api.CordonedDevice{{Device: "nvme-2", Cordon: api.Cordon{Reason: "worn out"}}},
		Refused: []api.Refusal{{Time: last, Resource: "t/r", Call: "Allocate", Reason: "nvme-1 is unhealthy: gone"}},
	}, now)
	want := `metalplugd    1.0, up 1m30s
hardware      udev
              not inspected yet
configuration /etc/a.toml, /etc/b.toml; the last reload was refused: /etc/b.toml:3: nonsense: unknown key
devices       1 healthy, 1 unhealthy, 1 cordoned, 1 held by pods, 4 not offered
events        12 (last 1h0m0s ago), 1 overflows, 2 resyncs
files         state not saved: no space left on device
cordoned      nvme-2: worn out

t/r     1 of 3 healthy; kubelet not connected
t/held  2 of 2 healthy; held back

t/held is held back: another plugin serves t/held
  -> ` + otherPluginRemedy + `

Containers that did not get their devices:
  1h0m0s ago, t/r, Allocate: nvme-1 is unhealthy: gone
`
	if s.String() != want {
		t.Errorf("%s\nwant\n%s", s, want)
	}
}

// TestLinesBreakBetweenWords checks that no line of a narrow terminal breaks inside a word.
func TestLinesBreakBetweenWords(t *testing.T) {
	s := &screen{width: 20}
	s.line("-> ", "", "uncordon nvme-eui.36344830545001270025384300000001 and wait")
	s.table("", cells("NAME", "REASON"), cells("a", "in use by 0000:3b:00.0/nvme1n1p1"))
	s.line("configuration ", "", "/a.toml")
	s.line("              ", "", "/b.toml")
	want := "-> uncordon\n   nvme-eui.36344830545001270025384300000001\n   and wait\nNAME  REASON\na\n    in use by\n    0000:3b:00.0/nvme1n1p1\nconfiguration\n    /a.toml\n    /b.toml\n"
	if s.String() != want {
		t.Errorf("%q, want %q", s, want)
	}
}

func TestLogin(t *testing.T) {
	for text, want := range map[string]string{"0\n": "root", "4294967295\n": "", "": "", "x": ""} {
		file := filepath.Join(t.TempDir(), "loginuid")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := login(file); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := login(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("without the file: %q", got)
	}
}

// TestListNotes checks the notes of the list. Right after the start of metalplugd, the list does not say that there is no device.
// A resource that is held back is shown with the cause.
func TestListNotes(t *testing.T) {
	held := api.Resource{Name: "t/held", Registration: api.Registration{Held: "another plugin serves t/held"}}
	for want, answers := range map[string]map[string]any{
		"has not inspected the hardware yet":      {"/v1/resources": []api.Resource{}, "/v1/devices": []api.Device{}, "/v1/status": api.Status{Version: "1.0"}},
		"held back: another plugin serves t/held": {"/v1/resources": []api.Resource{held}, "/v1/devices": []api.Device{{ID: "GPU-1", Resource: "t/held", Health: "Healthy"}}},
	} {
		if code, stdout, stderr := ctl(t, "--socket", serveAnswers(t, answers), "list"); code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, no %q in %s%s", code, want, stdout, stderr)
		}
	}
}

// TestDaemonOfAnotherVersion gives each command an answer that it does not know. An answer without a known field must not look
// like a success.
func TestDaemonOfAnotherVersion(t *testing.T) {
	for _, text := range []string{"", "<html>", "{}", `"x"`, `{"id":"x"`, `{"new":1}`} {
		answers := make(map[string]any)
		for _, path := range []string{"status", "resources", "devices", "devices/x", "why", "topology", "events", "devices/x/cordon", "devices/x/uncordon"} {
			answers["/v1/"+path] = raw(text)
		}
		if text == "" { // an old daemon without these paths
			answers = nil
		}
		socket := serveAnswers(t, answers)
		for _, args := range [][]string{
			{"list"}, {"status"}, {"why", "x"}, {"watch", "--once"}, {"events"}, {"topology"}, {"cordon", "x"}, {"uncordon", "x"}, {"reset", "x"}, {"adopt", "x"},
		} {
			code, stdout, stderr := ctl(t, append([]string{"--socket", socket}, args...)...)
			if code != exitProblem || stdout != "" || !strings.Contains(stderr, "have different versions") {
				t.Errorf("%q, %v: exit %d: %q, %q", text, args, code, stdout, stderr)
			}
		}
	}
}

// TestFollowOfABrokenStream sends text that is not an event, or ends. The command ends with the reason.
func TestFollowOfABrokenStream(t *testing.T) {
	for text, want := range map[string]string{
		"nonsense":                     "read the events of",
		`{"event":"listening"}` + "\n": "metalplugd stopped",
	} {
		o := clientOptions{socket: serveAnswers(t, map[string]any{"/v1/events": raw(text)})}
		err := o.stream(t.Context(), func(api.Event) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
	o := clientOptions{socket: serveAnswers(t, map[string]any{"/v1/events": raw(`{"event":"listening"}`)})}
	full := errors.New("no space left")
	if err := o.stream(t.Context(), func(api.Event) error { return full }); !errors.Is(err, full) {
		t.Error(err)
	}
}

// raw is an answer that the server sends unchanged.
type raw string
