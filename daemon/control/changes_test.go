// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/sysfs"
)

// offered is a healthy device in an offer, with changes.
func offered(changes ...func(*inventory.Status)) *inventory.Status {
	s := &inventory.Status{
		Device:   &device.Device{ID: "d", Class: &device.NVMe, SysPath: "/sys/devices/d", NUMANode: 1},
		Resource: "t/r", Verdict: inventory.Verdict{Healthy: true}, Observation: inventory.Observation{Present: true},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func sick(reason string) func(*inventory.Status) {
	return func(s *inventory.Status) { s.Healthy, s.Reason = false, reason }
}

func cordoned(s *inventory.Status) {
	s.Healthy, s.Cordon, s.Reason = false, &inventory.Cordon{Reason: "x", User: "ann"}, "cordoned: x"
}

func cordonedBy(user string) func(*inventory.Status) {
	return func(s *inventory.Status) {
		s.Healthy, s.Cordon, s.Reason = false, &inventory.Cordon{Reason: "y", User: user}, "cordoned: y"
	}
}

func held(s *inventory.Status) { s.Hold = lease.Started }

func seen(s *inventory.Status) { s.Resource, s.Healthy, s.Reason = "", false, "in use" }

func gone(s *inventory.Status) { s.Present, s.Healthy, s.Reason = false, false, "gone" }

func warned(s *inventory.Status) { s.Warning = "narrow" }

func TestChangesOfADevice(t *testing.T) {
	for _, test := range []struct {
		name     string
		old, now *inventory.Status
		want     string
	}{
		{"plugged in", nil, offered(), "added"},
		{"plugged in, sick", nil, offered(sick("x")), "added"},
		{"plugged in, in use", nil, offered(seen), "seen"},
		{"no change", offered(), offered(), ""},
		{"mounted", offered(), offered(seen), "withdrawn"},
		{"unmounted", offered(seen), offered(), "added healthy"},
		{"pulled", offered(), offered(gone), "gone"},
		{"put in again", offered(gone), offered(), "back healthy"},
		{"put in again, sick", offered(gone), offered(sick("x")), "back"},
		{"broken", offered(), offered(sick("x")), "unhealthy"},
		{"broken in another way", offered(sick("x")), offered(sick("y")), "unhealthy"},
		{"recovered", offered(sick("x")), offered(), "healthy"},
		{"allocated", offered(), offered(held), "allocated"},
		{"released", offered(held), offered(), "released"},
		{"pulled from a pod", offered(held), offered(held, gone), "gone"},
		{"pulled and released", offered(held), offered(gone), "gone released"},
		{"cordoned", offered(), offered(cordoned), "cordoned"},
		{"cordoned as before", offered(cordoned), offered(cordoned), ""},
		{"cordoned for another reason", offered(cordoned), offered(cordonedBy("bob")), "cordoned"},
		{"cordoned, and worse", offered(cordoned), offered(cordoned, func(s *inventory.Status) { s.Reason += "; sick" }), "unhealthy"},
		{"uncordoned", offered(cordoned), offered(), "uncordoned"},
		{"uncordoned, and sick", offered(cordoned), offered(sick("x")), "uncordoned"},
		{"a warning", offered(), offered(warned), "warning"},
		{"a warning is over", offered(warned), offered(), "warning"},
		{"another reason while only seen", offered(seen), offered(seen, func(s *inventory.Status) { s.Reason = "mounted" }), ""},
	} {
		if got := strings.Join(changes(test.old, test.now), " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func snapshot(devices ...*inventory.Status) *inventory.Snapshot {
	s := &inventory.Snapshot{Version: 1, Offers: map[string]*inventory.Offer{"t/r": {}}}
	for _, d := range devices {
		if d.Resource == "" {
			s.Others = append(s.Others, d)
		} else {
			s.Offers["t/r"].Devices = append(s.Offers["t/r"].Devices, d)
		}
	}
	return s
}

func named(id string) func(*inventory.Status) {
	return func(s *inventory.Status) { s.Device.ID, s.Device.SysPath = id, "/sys/devices/"+id }
}

func TestDifferenceOfSnapshots(t *testing.T) {
	same := offered(named("same"))
	nameless := offered(seen, func(s *inventory.Status) { s.Device.ID, s.Device.SysPath = "", "/sys/devices/nameless" })
	before := snapshot(offered(named("a")), offered(named("b")), same, nameless)
	after := snapshot(offered(named("a"), sick("x")), offered(named("c"), held), same, nameless)
	var got []string
	for _, e := range difference(before, after, map[string][]Holder{"c": {{"n", "p", "c"}}}) {
		got = append(got, fmt.Sprint(e.Event, " ", e.Device.ID, " ", e.Device.Allocated != nil))
	}
	if want := []string{"unhealthy a false", "added c true", "withdrawn b false"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if events := difference(after, after, nil); events != nil {
		t.Errorf("of the same: %+v", events)
	}
}

func TestKubeletEvents(t *testing.T) {
	before := map[string]bool{"a": true, "b": false, "gone": true}
	after := map[string]bool{"a": false, "b": true, "new": true, "none": false}
	want := []Event{
		{Event: "disconnected", Resource: "a"}, {Event: "connected", Resource: "b"}, {Event: "connected", Resource: "new"},
	}
	if got := kubeletEvents(before, after); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestDeviceAsItIsShown(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	s := offered(held, warned, func(s *inventory.Status) {
		s.Since, s.Device.Model = since, "Drive"
		s.Nodes = []device.Node{{Host: "/dev/disk/by-id/x", Container: "/dev/nvme0n1"}, {Container: "/dev/other"}}
	})
	two := []Holder{{"n", "p", "c"}, {"n", "q", "c"}}
	want := Device{
		ID: "d", Resource: "t/r", Class: "nvme", Health: "Healthy", Since: since.UTC(), NUMANode: 1, SysPath: "/sys/devices/d",
		Nodes: []string{"/dev/nvme0n1", "/dev/other"}, Allocated: &two[0], Held: true, Holders: two, Model: "Drive",
		Warning: "narrow", Present: true,
	}
	if got := newDevice(s, map[string][]Holder{"d": two}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	one := newDevice(s, map[string][]Holder{"d": two[:1]})
	if one.Holders != nil || *one.Allocated != two[0] {
		t.Errorf("with one holder %+v", one)
	}
	// What the kubelet said last may be older than what is known since.
	if free := newDevice(offered(), map[string][]Holder{"d": two}); free.Allocated != nil || free.Holders != nil {
		t.Errorf("held by nobody: %+v", free)
	}
	unknown := newDevice(&inventory.Status{Device: &device.Device{}, Verdict: inventory.Verdict{Reason: "no wwid"}}, nil)
	if unknown.Class != "" || unknown.Nodes == nil || unknown.Health != "Unhealthy" {
		t.Errorf("not identified: %+v", unknown)
	}
}

func TestRefusalsAreFewAndNotRepeated(t *testing.T) {
	var r refusals
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	for n := range 5 {
		r.add(Refusal{Time: at(n), Resource: "t/r", Reason: "the same"})
	}
	if got, want := r.list(), []Refusal{{Time: at(4), Resource: "t/r", Reason: "the same"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	first := r.list()
	for n := range 40 {
		r.add(Refusal{Time: at(n), Resource: "t/r", Reason: fmt.Sprint(n)})
	}
	last := r.list()
	if len(last) != refusalsKept || last[0].Reason != "24" || last[refusalsKept-1].Reason != "39" {
		t.Errorf("%+v", last)
	}
	if first[0].Reason != "the same" {
		t.Errorf("what was listed has changed: %+v", first)
	}
}

func TestNamesOfWhatIsAsked(t *testing.T) {
	s := &Server{Options: Options{Host: &device.Host{Tree: sysfs.Tree{Sys: t.TempDir()}}}}
	for what, want := range map[string][2]string{ // the path in sysfs and the address that it may be
		"3b:00.0":                     {"", "0000:3b:00.0"},
		"0000:3B:00.0":                {"", "0000:3b:00.0"},
		"10000:3b:00.0":               {"", "10000:3b:00.0"},
		"/devices/pci0000:00":         {"/sys/devices/pci0000:00", ""},
		"/sys/devices/pci0000:00/../": {"/sys/devices", ""},
		"nvme-1":                      {"", "nvme-1"},
	} {
		got := [2]string{s.sysPath(what)}
		if got[0] == "" {
			got[1] = address(what)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}

func TestStatusOfWhatIsAsked(t *testing.T) {
	node := func(s *inventory.Status) {
		s.Nodes = []device.Node{{Host: "/dev/disk/by-id/x", Container: "/dev/nvme0n1"}}
	}
	all := snapshot(offered(named("a::b"), node), offered(named("c"), seen))
	for what, want := range map[string]string{
		"a::b": "a::b", "a::b::1": "a::b", "c": "c", "c::0": "c", "/dev/nvme0n1": "a::b", "/dev/disk/by-id/x": "a::b",
		"a": "", "": "", "::": "", "/dev/none": "", "/sys/devices/c": "",
	} {
		got := ""
		if s := statusOf(all, what); s != nil {
			got = s.Device.ID
		}
		if got != want {
			t.Errorf("%q is %q, want %q", what, got, want)
		}
	}
}

func TestChangesAreReadStrictly(t *testing.T) {
	for body, want := range map[string]Change{
		"":                              {},
		"{}":                            {},
		`{"reason":" loose \n cable "}`: {Reason: "loose cable"},
		`{"scrub":"zero"}`:              {Scrub: "zero"},
		`{"login":" ann\u001b "}`:       {Login: "ann\x1b"}, // the one who shows it takes out what steers a terminal
	} {
		if got, err := readChange(strings.NewReader(body)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", body, got, err)
		}
	}
	for _, body := range []string{"[]", "{", `{"reason":1}`, `{"scrubb":"zero"}`, `{"reason":"` + strings.Repeat("x", 201) + `"}`, `{"login":"` + strings.Repeat("x", 65) + `"}`} {
		if got, err := readChange(strings.NewReader(body)); err == nil || got != (Change{}) {
			t.Errorf("%q: %+v, %v", body, got, err)
		}
	}
}

func TestWhoHasCordoned(t *testing.T) {
	at := time.Unix(1, 0)
	for want, c := range map[string]Cordon{
		"":                {Reason: "of the first versions"},
		"root":            {User: "root", Since: &at},
		"ann as root":     {User: "root", Login: "ann", Since: &at},
		"ann":             {UID: 1000, User: "ann", Login: "ann", Since: &at},
		"uid 1000":        {UID: 1000, Since: &at},
		"ann as uid 1000": {UID: 1000, Login: "ann", Since: &at},
	} {
		if got := c.Who(); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
	if got := newCordon(&inventory.Cordon{Reason: "x"}); *got != (Cordon{Reason: "x"}) {
		t.Errorf("%+v", got)
	}
	if name, other := userName(0), userName(1000); name != "root" || other != "" {
		t.Errorf("%q and %q", name, other)
	}
}

func TestNoAnswerWithoutPermission(t *testing.T) {
	err := Client{Socket: "/s"}.noAnswer(t.Context(), fmt.Errorf("dial: %w", fs.ErrPermission))
	want := "metalplugd does not answer: /s: permission denied: use sudo, or join the group metalplug"
	if err.Error() != want || !errors.Is(err, ErrNoAnswer) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestWhyWaitsForNobodyForLong: somebody whose question hits hardware that does not answer keeps nobody else waiting.
func TestWhyWaitsForNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{asking: make(chan struct{}, 1)}
		s.asking <- struct{}{}
		began, answer := time.Now(), httptest.NewRecorder()
		s.sendWhy(answer, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/why?what=x", nil))
		if answer.Code != 503 || !strings.Contains(answer.Body.String(), errBusy.Error()) || time.Since(began) != askLimit {
			t.Errorf("%d after %v: %s", answer.Code, time.Since(began), answer.Body)
		}
	})
}

func TestCodeOfAnError(t *testing.T) {
	if code := codeOf(fmt.Errorf("x: %w", inventory.ErrUnknownDevice)); code != 404 {
		t.Error(code)
	}
	if code := codeOf(errors.New("no space left")); code != 500 {
		t.Error(code)
	}
}
