// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// metrics returns the result of a scrape without comments.
func (b *bench) metrics() string {
	b.t.Helper()
	body, err := b.Stream(b.t.Context(), "/metrics")
	if err != nil {
		b.t.Fatal(err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		b.t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(text), "")
}

const wantMetrics = `metalplug_allocations_total{resource="example.org/widget",result="failed"} 1
metalplug_allocations_total{resource="example.org/widget",result="ok"} 2
metalplug_build_info{goversion="GO",version="1.2"} 1
metalplug_config_reload_success 0
metalplug_device_allocated{container="c",device="node-A-widget",namespace="n",pod="p",resource="example.org/widget"} 1
metalplug_device_allocated{container="d",device="node-A-widget",namespace="n",pod="p",resource="example.org/widget"} 1
metalplug_device_cordoned{device="node-A-widget",resource="example.org/widget"} 0
metalplug_device_cordoned{device="node-B-widget",resource="example.org/widget"} 1
metalplug_device_health{device="node-A-widget",resource="example.org/widget"} 1
metalplug_device_health{device="node-B-widget",resource="example.org/widget"} 0
metalplug_device_info{device="node-A-widget",model="",numa="-1",pci="",resource="example.org/widget"} 1
metalplug_device_info{device="node-B-widget",model="",numa="-1",pci="",resource="example.org/widget"} 1
metalplug_device_state{device="node-A-widget",resource="example.org/widget",state="allocated"} 1
metalplug_device_state{device="node-B-widget",resource="example.org/widget",state="free"} 1
metalplug_devices{health="Healthy",resource="example.org/widget"} 1
metalplug_devices{health="Unhealthy",resource="example.org/widget"} 1
metalplug_devices_not_offered{class="fpga"} 0
metalplug_devices_not_offered{class="gpu"} 0
metalplug_devices_not_offered{class="infiniband"} 0
metalplug_devices_not_offered{class="node"} 0
metalplug_devices_not_offered{class="nvme"} 0
metalplug_disks_reading 0
metalplug_registrations_total{resource="example.org/widget",result="failed"} 1
metalplug_registrations_total{resource="example.org/widget",result="ok"} 1
metalplug_release_to_offer_seconds_sum 0
metalplug_release_to_offer_seconds_count 0
metalplug_reset_duration_seconds_sum 3
metalplug_reset_duration_seconds_count 1
metalplug_resets_total{method="dfl-port",resource="example.org/widget",result="failed"} 1
metalplug_resource_conflict{resource="example.org/widget"} 0
metalplug_resyncs_total 0
metalplug_stream_connected{resource="example.org/widget"} 1
metalplug_uevent_overflows_total 0
metalplug_uevent_to_send_seconds_sum 0.002
metalplug_uevent_to_send_seconds_count 1
metalplug_uevents_total 0
`

// TestHardwareSteersNoScrape checks that the name of a device's model cannot steer the terminal of a user who reads the metrics.
func TestHardwareSteersNoScrape(t *testing.T) {
	b := start(t, strings.Replace(widget("A", "A"), "A: sick", "E: ID_MODEL=a\x1b[31mb\"\xff\nA: sick", 1))
	if all := b.metrics(); !strings.Contains(all, `model="a [31mb\"`+"\uFFFD\"") {
		t.Errorf("%q", all)
	}
}

func TestMetrics(t *testing.T) {
	b := start(t, machine())
	b.server.SetHolders(map[string][]api.Pod{
		alpha:           {{Namespace: "n", Name: "p", Container: "c"}, {Namespace: "n", Name: "p", Container: "d"}},
		"node-B-widget": {{Namespace: "n", Name: "gone", Container: "c"}},
	})
	tally := b.server.Endpoints()
	tally.Answered(resource, "Allocate", nil)
	tally.Answered(resource, "Allocate", nil)
	tally.Answered(resource, "Allocate", errors.New("x"))
	tally.Answered(resource, "PreStartContainer", errors.New("x"))
	tally.Registered(resource, nil)
	tally.Registered(resource, errors.New("x"))
	tally.Sent(2 * time.Millisecond)
	b.server.CountReset(resource, "dfl-port", 3*time.Second, errors.New("x"))
	b.server.Reloaded(nil, errors.New("x"))
	b.inventory.Allocated(map[string][]string{alpha: {alpha}}, "")
	if err := b.cordon("node-B-widget", "x"); err != nil {
		t.Fatal(err)
	}
	b.waitSnapshot("held", func(s *inventory.Snapshot) bool { return s.Find(alpha).Held() })
	got := regexp.MustCompile(`(?m)^.*_bucket.*\n`).ReplaceAllString(b.metrics(), "")
	got = regexp.MustCompile(`goversion="[^"]*"`).ReplaceAllString(got, `goversion="GO"`)
	if got != wantMetrics {
		t.Errorf("%s\nwant\n%s", got, wantMetrics)
	}
}

const wantBundle = `metalplug_device_bundle{bundle="bundle-node-A-widget",device="node-B-widget",resource="example.org/widget"} 1
`

func TestMetricsOfABundle(t *testing.T) {
	b := start(t, "")
	<-b.inventory.SetRules([]device.Rule{
		{Resource: resource, Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "widget"}},
		{Resource: "example.org/pair", Class: &device.Bundle, Bundle: &device.Members{Resources: []string{resource}, Counts: []int{2}, Near: "any"}},
	}, nil)
	b.machine.Plug(widget("widget0", "A") + widget("widget2", "B"))
	b.waitSnapshot("a bundle", func(s *inventory.Snapshot) bool { return s.Find("bundle-node-A-widget") != nil })
	if got := b.metrics(); !strings.Contains(got, wantBundle) {
		t.Errorf("no %s in\n%s", wantBundle, got)
	}
}

// TestReleaseToOffer measures the time until a device that a pod has had is offered again.
func TestReleaseToOffer(t *testing.T) {
	b := start(t, machine())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.server.TimeReleases(ctx, func() {}) }()
	t.Cleanup(func() { cancel(); <-ended })
	const none = "metalplug_release_to_offer_seconds_count 0\n"
	hold := func(held bool) {
		if held {
			b.inventory.Allocated(map[string][]string{alpha: {alpha}}, "")
		} else {
			b.inventory.Released([]string{alpha})
		}
		b.waitSnapshot("another holder", func(s *inventory.Snapshot) bool { return s.Find(alpha).Held() == held })
	}
	for strings.Contains(b.metrics(), none) { // repeat until the server has noticed a release in time
		hold(true)
		hold(false)
	}
}

// TestMetricsOverTheNetwork checks that the network socket serves only the metrics.
func TestMetricsOverTheNetwork(t *testing.T) {
	b := start(t, machine())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.server.ServeMetrics(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for path, want := range map[string]int{"/metrics": 200, "/v1/status": 404, "/v1/devices/" + alpha + "/cordon": 404} {
		response, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

// TestNamesOfTheDesign checks the names that external dashboards and alerts use.
func TestNamesOfTheDesign(t *testing.T) {
	design, err := os.ReadFile(filepath.Join("testdata", "metrics.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(design)) {
		if !strings.Contains(wantMetrics+wantBundle, name) {
			t.Errorf("there is no %s", name)
		}
	}
}
