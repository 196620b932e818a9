// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	real "github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

// patience is the maximum time that a test waits for a state.
const patience = time.Minute

// parts are the parts of the daemon that decide which pod gets which device. They are combined as in package daemon,
// except that the test decides when the kubelet is queried.
type parts struct {
	inventory *inventory.Inventory
	turnover  *turnover.Turnover
	holders   real.Holders
	stop      func() error
}

// setup configures the parts.
type setup struct {
	source udev.Source
	root   string // parent of sys, dev and proc
	touch  device.Touch
	dir    string // the kubelet's directory
	state  string
	care   config.Resource // the configuration of the disks
	shares int             // number of shares of each widget
	kinds  int             // number of kinds of widgets, each with its own resource, or 0 for one kind without a number
	bundle int             // if not 0, the number of disks that form a bundle with a widget
	apart  bool            // a reload has removed the bundles
	hold   bool            // unused members are not offered
	log    *slog.Logger
}

// widgetKinds maps the subsystem of each kind of widget to its resource.
func (s setup) widgetKinds() map[string]string {
	if s.kinds == 0 {
		return map[string]string{"widget": widgetResource}
	}
	kinds := make(map[string]string)
	for n := range s.kinds {
		kinds[fmt.Sprintf("widget%d", n)] = fmt.Sprintf("%s%d", widgetResource, n)
	}
	return kinds
}

// rules returns the rules of all resources.
func (s setup) rules() []device.Rule {
	disks := s.care.Rule()
	rules := []device.Rule{{
		Resource: diskResource, Class: &device.NVMe, ErasedAtStart: disks.ErasedAtStart, ClearedAtRelease: disks.ClearedAtRelease,
	}}
	for subsystem, resource := range s.widgetKinds() {
		rules = append(rules, device.Rule{Resource: resource, Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": subsystem}})
	}
	if s.bundle > 0 && !s.apart {
		rules = append(rules, device.Rule{Resource: bundleResource, Class: &device.Bundle, Bundle: &device.Members{
			Resources: []string{widgetResource, diskResource}, Counts: []int{1, s.bundle}, Near: "any", Hold: s.hold,
		}})
	}
	return rules
}

// resources returns the endpoints' resources.
func (s setup) resources() []plugin.Resource {
	all := []plugin.Resource{{Name: diskResource, Permissions: "rw", Variable: "METALPLUG_NVME"}}
	for _, resource := range s.widgetKinds() {
		all = append(all, plugin.Resource{Name: resource, Permissions: "rw", Variable: "METALPLUG_WIDGET", Shares: s.shares})
	}
	if s.bundle > 0 {
		all = append(all, plugin.Resource{Name: bundleResource, Permissions: "rw", Variable: "METALPLUG_BUNDLE"})
	}
	return all
}

// run starts all parts and returns when they serve.
func (s setup) run() (*parts, error) {
	host := &device.Host{
		Tree: sysfs.At(s.root), Touch: s.touch,
	}
	inv := inventory.New(inventory.Options{
		Source: s.source, Host: host, Rules: s.rules(), Log: s.log, Settle: 5 * time.Second, Grace: time.Nanosecond,
		Store: statefile.Open(s.state, s.log), CheckpointDevices: s.checkpointDevices(),
	})
	turn := &turnover.Turnover{
		Inventory: inv, Host: host, Log: s.log,
		Owners: func() (map[string][]string, error) { return real.Owners(s.dir) },
		Configured: func(resource string) (config.Resource, bool) { // the turnover does nothing for other resources
			r, ok := map[string]config.Resource{
				widgetResource: {Shares: s.shares, Reset: config.ResourceReset{Method: config.None, Scrub: config.None}}, diskResource: s.care,
			}[resource]
			return r, ok
		},
	}
	p := &parts{inventory: inv, turnover: turn, holders: real.Holders{Socket: socketOf(s.dir), Dir: s.dir}}
	return p, p.start(s, host)
}

// checkpointDevices returns the content of the checkpoint, if it is readable.
func (s setup) checkpointDevices() map[string]map[string]real.Known {
	devices, err := real.CheckpointDevices(s.dir)
	if err != nil {
		s.log.Warn("kubelet checkpoint not read", "err", err)
	}
	return devices
}

// start runs the tasks in their order.
func (p *parts) start(s setup, host *device.Host) error {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var mu sync.Mutex
	var failed error
	p.stop = func() error {
		cancel()
		running.Wait()
		return failed
	}
	await := func(run func(ctx context.Context, started func()) error) {
		started := make(chan struct{})
		once := sync.OnceFunc(func() { close(started) })
		running.Go(func() {
			defer once()
			if err := run(ctx, once); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			}
		})
		<-started
	}
	watch := &plugin.Watch{Dir: s.dir, Log: s.log}
	await(watch.Run)
	await(func(ctx context.Context, started func()) error {
		running.Go(func() {
			select {
			case <-p.inventory.Ready():
			case <-ctx.Done():
			}
			started()
		})
		return p.inventory.Run(ctx)
	})
	all := make(map[string]plugin.Resource)
	for _, r := range s.resources() {
		if all[r.Name] = r; r.Name == bundleResource { // the resource of bundles comes last
			r.Member = func(name string) (plugin.Resource, error) { return all[name], nil }
		}
		endpoint := &plugin.Endpoint{
			Resource: r, Dir: s.dir, Inventory: p.inventory, Host: host, Watch: watch, Log: s.log, Parked: &plugin.Parked{}, Start: p.turnover.Start,
			Allocated: func([]*inventory.Status) {}, Changed: func() {},
			Counted: func(context.Context) ([]string, error) { return nil, nil },
			Metrics: plugin.Metrics{
				Answered: func(string, string, error) {}, Registered: func(string, error) {}, Sent: func(time.Duration) {},
			},
		}
		await(func(ctx context.Context, started func()) error {
			endpoint.Run(ctx, started)
			return nil
		})
	}
	await(p.turnover.Run)
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// ask queries the kubelet for holders once, as the daemon does at intervals.
func (p *parts) ask(ctx context.Context) error {
	snapshot, _ := p.inventory.Snapshot()
	var doubtful []string
	for _, offer := range snapshot.Offers {
		for _, d := range offer.Devices {
			if d.Held() || d.Stale {
				doubtful = append(doubtful, d.Device.ID)
			}
		}
	}
	answer, err := p.holders.Ask(ctx, doubtful)
	if err != nil {
		return err
	}
	p.inventory.Confirm(answer)
	return p.inventory.Alive(ctx)
}

// journal keeps the log for debugging. Safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write never fails.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String returns the whole log.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// shortDir makes a directory with a short name, because the path of a unix socket has at most 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newMachine makes a machine that reports the hardware like udev.
func newMachine(t *testing.T, h *hardware) *udevtest.Machine {
	t.Helper()
	return udevtest.New(t, h.text())
}

// eventually polls until a condition holds.
func eventually(holds func() error) error {
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := holds()
		if err == nil || errors.Is(err, errNever) {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline:
			return err
		}
	}
}

// errNever means that a forbidden state was reached, which waiting cannot repair.
var errNever = errors.New("must never happen")

// remove returns a list without a value.
func remove[T comparable](list []T, value T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return v == value })
}
