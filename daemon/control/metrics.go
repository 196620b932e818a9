// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// metrics contains metalplugd's metrics in a separate registry, so that metrics of other packages are not included.
//
// The number of series depends on the configuration and the hardware. Each scrape generates the series, so removed devices and
// ended pods have none. For 10,000 devices, each of metalplug_device_health, _state, _info and _cordoned has about 10,000 series.
// metalplug_device_allocated has one series for each container that holds a device. The kubelet admits at most a few hundred
// containers on a node.
type metrics struct {
	registry      *prometheus.Registry
	allocations   *prometheus.CounterVec
	registrations *prometheus.CounterVec
	resets        *prometheus.CounterVec
	resetTime     prometheus.Histogram
	offerTime     prometheus.Histogram
	sendTime      prometheus.Histogram
}

// newMetrics returns a server's metrics. Metric names and labels never change, because users' dashboards and alerts depend on
// them. Units and suffixes follow the Kubernetes instrumentation guidelines (seconds, _total, no label with an unlimited number
// of values).
func newMetrics(s *Server) *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(scrape{s})
	register := promauto.With(registry)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register.NewCounterVec(prometheus.CounterOpts{Name: "metalplug_" + name, Help: help}, labels)
	}
	register.NewGauge(prometheus.GaugeOpts{
		Name: "metalplug_build_info", Help: "1; the labels are the version and the build environment.",
		ConstLabels: prometheus.Labels{"version": s.Version, "goversion": runtime.Version()},
	}).Set(1)
	return &metrics{
		registry:      registry,
		allocations:   counter("allocations_total", "Number of Allocate calls that were answered.", "resource", "result"),
		registrations: counter("registrations_total", "Number of attempts to register with the kubelet.", "resource", "result"),
		resets:        counter("resets_total", "Number of resets and erasures of devices.", "resource", "method", "result"),
		resetTime: register.NewHistogram(prometheus.HistogramOpts{
			Name: "metalplug_reset_duration_seconds", Help: "Duration of resets and erasures.",
			Buckets: []float64{0.01, 0.1, 0.5, 1, 2, 5, 10, 25, 60, 300, 1800, 7200}, // 25 s is the timeout for work before a start
		}),
		offerTime: register.NewHistogram(prometheus.HistogramOpts{
			Name:    "metalplug_release_to_offer_seconds",
			Help:    "Time from the release of a device by its last pod to its next offer.",
			Buckets: []float64{0.01, 0.1, 1, 2, 5, 10, 25, 60, 300, 1800, 7200, 43200}, // erasing a large disk takes hours
		}),
		sendTime: register.NewHistogram(prometheus.HistogramOpts{
			Name: "metalplug_uevent_to_send_seconds",
			Help: "Time from a udevd event to the list that was sent to the kubelet because of it.",
			// Buckets are finest near the limits in docs/performance.md, where p50 is 1 ms and p99 is 5 ms.
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5},
		}),
	}
}

// Endpoints returns functions that count the answers and registrations of endpoints, and record refusals. Each function runs
// before the kubelet gets an answer. Such a call takes about a microsecond, because other goroutines hold its locks only briefly.
func (s *Server) Endpoints() plugin.Metrics {
	return plugin.Metrics{
		Answered: func(resource, call string, err error) {
			if call == "Allocate" {
				s.allocations.WithLabelValues(resource, result(err)).Inc()
			}
			if err != nil {
				s.recordRefusal(resource, call, err)
			}
		},
		Registered: func(resource string, err error) { s.registrations.WithLabelValues(resource, result(err)).Inc() },
		Sent:       func(since time.Duration) { s.sendTime.Observe(since.Seconds()) },
	}
}

// CountReset counts a device's reset or erasure, with the resource, the method name and the duration.
func (s *Server) CountReset(resource, method string, took time.Duration, err error) {
	s.resets.WithLabelValues(resource, method, result(err)).Inc()
	s.resetTime.Observe(took.Seconds())
}

// result returns the label for an action's result. The label does not contain the error text, because a label must have a limited
// number of values.
func result(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// sendMetrics sends all metrics in the format that the client prefers. sendMetrics collects all metrics before it sends the first
// byte, so that a client gets either all metrics or an error.
func (s *Server) sendMetrics() http.Handler {
	return inTurn(promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP)
}

// scrape generates metrics for the current state on each scrape. If each change updated the values instead, a missed change would
// leave a wrong value.
type scrape struct{ *Server }

// desc describes a metric that is generated on each scrape.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("metalplug_"+name, help, labels, nil)
}

// These metrics are generated on each scrape.
var (
	devicesDesc   = desc("devices", "Number of offered devices, by the health that the kubelet sees.", "resource", "health")
	healthDesc    = desc("device_health", "1 for a device that is Healthy, 0 for one that is not.", "resource", "device")
	stateDesc     = desc("device_state", "1 for the state of each device's lease.", "resource", "device", "state")
	allocatedDesc = desc("device_allocated", "1 for each container that holds a device.",
		"resource", "device", "namespace", "pod", "container")
	connectedDesc = desc("stream_connected", "1 if the kubelet's stream of a resource is open.", "resource")
	infoDesc      = desc("device_info", "1 for each device; the labels identify it.", "resource", "device", "model", "pci", "numa")
	cordonedDesc  = desc("device_cordoned", "1 for a device that an operator has cordoned, otherwise 0.", "resource", "device")
	bundleDesc    = desc("device_bundle", "1 for each device that is part of a bundle; the label bundle is the ID of the bundle.", "resource", "device", "bundle")
	readingDesc   = desc("disks_reading", "Number of disks that are being read before they are offered.")
	othersDesc    = desc("devices_not_offered", "Number of present devices that are not offered.", "class")
	reloadDesc    = desc("config_reload_success", "0 if the last reload of the configuration was refused, otherwise 1.")
	conflictDesc  = desc("resource_conflict", "1 if another plugin serves the name of a resource, according to the kubelet.", "resource")
	eventsDesc    = desc("uevents_total", "Number of events from udevd.")
	overflowsDesc = desc("uevent_overflows_total", "Number of times that events were lost and all devices were enumerated again.")
	resyncsDesc   = desc("resyncs_total", "Number of enumerations of all devices after the first.")
)

// Describe does not send any metrics, so that the registry accepts all metrics that Collect sends.
func (scrape) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics for the current state.
func (s scrape) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	count := func(desc *prometheus.Desc, value uint64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value))
	}
	counts := s.Inventory.Counts()
	count(eventsDesc, counts.Events)
	count(overflowsDesc, counts.Overflows)
	count(resyncsDesc, counts.Resyncs)
	gauge(reloadDesc, boolValue(s.configuration().Problem == ""))
	snapshot, _ := s.Inventory.Snapshot()
	for _, r := range s.resources(snapshot) {
		gauge(devicesDesc, float64(r.Healthy), r.Name, health(true))
		gauge(devicesDesc, float64(r.Unhealthy), r.Name, health(false))
		if !r.ByClaim() {
			gauge(connectedDesc, boolValue(r.Connected), r.Name)
			gauge(conflictDesc, boolValue(r.Held != ""), r.Name)
		}
	}
	if snapshot.Version == 0 { // before the first snapshot, zeros would be wrong
		return
	}
	gauge(readingDesc, float64(cmp.Or(readProgress(snapshot), &api.ReadProgress{}).Disks))
	others := make(map[string]int)
	for _, c := range device.Classes {
		others[c.Name] = 0
	}
	for _, d := range snapshot.Others {
		if d.Present {
			others[d.Device.ClassName()]++
		}
	}
	for class, n := range others {
		gauge(othersDesc, float64(n), class)
	}
	holders := s.heldBy()
	for d := range snapshot.All() {
		s.collect(gauge, d, holders[d.Name()])
	}
}

// collect generates one device's metrics.
func (s scrape) collect(gauge func(desc *prometheus.Desc, value float64, labels ...string), d *inventory.Status, holders []api.Pod) {
	shown := NewDevice(d, nil)
	id, resource := shown.ID, cmp.Or(d.Resource, d.Taker)
	if id == "" || resource == "" {
		return
	}
	gauge(infoDesc, 1, resource, id, fsutil.Printable(shown.Model), shown.PCI, strconv.Itoa(shown.NUMANode))
	gauge(stateDesc, 1, resource, id, shown.State)
	gauge(cordonedDesc, boolValue(shown.Cordoned), resource, id)
	if d.Resource == "" { // the device is a disk that is not proven yet
		return
	}
	gauge(healthDesc, boolValue(d.Healthy), resource, id)
	if d.Bundle != "" {
		gauge(bundleDesc, 1, resource, id, d.Bundle)
	}
	for _, by := range holders { // holders is older than d, so a holder may have ended
		if d.Held() {
			gauge(allocatedDesc, 1, resource, id, by.Namespace, by.Name, by.Container)
		}
	}
}

// boolValue returns 1 for true and 0 for false.
func boolValue(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// TimeReleases measures the time from a device's release until the device is offered again. TimeReleases calls the function ready
// once, and runs until ctx ends. The error is always nil.
func (s *Server) TimeReleases(ctx context.Context, ready func()) error {
	ready()
	released := make(releases)
	for {
		snapshot, changed := s.Inventory.Snapshot()
		released = released.next(snapshot, time.Now(), func(took time.Duration) { s.offerTime.Observe(took.Seconds()) })
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// releases maps device IDs to the times when the devices were released. The time is zero while a pod holds the device.
type releases map[string]time.Time

// next returns the releases after a new snapshot. next calls offered() for each device that is offered again. next omits devices
// that are cordoned or absent, because these wait for an operator.
func (r releases) next(snapshot *inventory.Snapshot, now time.Time, offered func(took time.Duration)) releases {
	next := make(releases)
	for d := range snapshot.All() {
		id := d.Device.ID
		at, known := r[id]
		if at.IsZero() {
			at = now
		}
		switch {
		case d.Members != nil: // the bundle's members are measured instead
		case d.Held():
			next[id] = time.Time{}
		case !known, d.Cordon != nil, !d.Present:
		case d.Healthy:
			offered(now.Sub(at))
		default:
			next[id] = at
		}
	}
	return next
}
