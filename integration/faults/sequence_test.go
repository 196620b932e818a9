// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

var (
	sequences = flag.Int("sequences", 60, "how many random sequences are played")
	steps     = flag.Int("steps", 30, "how many steps each has")
	seed      = flag.Uint64("seed", 0, "the seed of the first one; play one again with -sequences 1 -seed N")
)

// players is the number of sequences that run at the same time. They mostly wait.
const players = 8

// TestSequences plays random sequences of events on a node. After each step it checks the guarantees. Violations are a
// device with two pods, a held ID that leaves the list, an unhealthy device that is listed as healthy, hardware that is
// not offered, a crash of the kubelet, and a disk with the data of another pod.
func TestSequences(t *testing.T) { playAll(t, false) }

// TestSequencesOfBundles is TestSequences on a node that offers bundles of a widget and one or two disks.
func TestSequencesOfBundles(t *testing.T) { playAll(t, true) }

func playAll(t *testing.T, bundled bool) {
	noLeaks(t) // the check runs after all sequences
	began, done, given, waits := time.Now(), atomic.Int64{}, atomic.Int64{}, lags{}
	var playing sync.WaitGroup
	next := make(chan uint64)
	for range players {
		playing.Go(func() {
			for n := range next {
				t.Run(fmt.Sprintf("seed=%d", n), func(t *testing.T) {
					s := newSequence(t, n, bundled)
					s.lags = &waits
					defer func() {
						done.Add(int64(len(s.said)))
						given.Add(int64(s.bundles))
					}()
					s.play()
				})
			}
		})
	}
	for n := range *sequences {
		if t.Failed() {
			break
		}
		next <- *seed + uint64(n)
	}
	close(next)
	playing.Wait()
	t.Logf("%d sequences, %d steps, %d bundles in %v; the offer is the hardware after %v",
		*sequences, done.Load(), given.Load(), time.Since(began).Round(time.Millisecond), &waits)
	if bundled && given.Load() == 0 && !t.Failed() {
		t.Error("no pod was given a bundle")
	}
	if p99, steps := waits.at(99); steps >= manySteps && p99 > soon {
		t.Errorf("after 99 of 100 steps the offer is the hardware within %v, want %v", p99, soon)
	}
}

const (
	// soon is the time in which the device list must match the hardware after the last change.
	soon = time.Second
	// manySteps is the minimum number of steps for a check of the percentile. With fewer steps, one late step of a busy
	// machine would fail the test.
	manySteps = 10_000
)

// TestSequenceIsPlayedAgain checks that the seed alone determines the events of the hardware and of both sides. The
// devices of each pod also depend on the order of goroutines.
func TestSequenceIsPlayedAgain(t *testing.T) {
	for n := range uint64(4) {
		n += 33 // a seed with several widgets that are unplugged
		var said [2][]string
		for k := range said {
			t.Run(fmt.Sprintf("seed=%d", n), func(t *testing.T) {
				s := newSequence(t, n, false)
				s.lags = &lags{}
				s.play()
				steps := s.said[:len(s.said)-1] // the last step is the end
				said[k] = slices.DeleteFunc(steps, func(step string) bool { return strings.Contains(step, "pod") })
			})
		}
		most := min(len(said[0]), len(said[1])) // if there is no pod, a step may do nothing
		if most == 0 || !slices.Equal(said[0][:most], said[1][:most]) {
			t.Errorf("seed %d:\n%s\nand then\n%s", n, strings.Join(said[0], "\n"), strings.Join(said[1], "\n"))
		}
	}
}

// lags are the times after each step until the device list matched the hardware. Safe for concurrent use.
type lags struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *lags) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

// at returns a percentile and the number of measurements, which may be 0.
func (l *lags) at(percent int) (lag time.Duration, of int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0, 0
	}
	all := slices.Sorted(slices.Values(l.all))
	return all[(len(all)-1)*percent/100].Round(10 * time.Microsecond), len(all)
}

// String returns the median, the 99th percentile and the maximum.
func (l *lags) String() string {
	p50, _ := l.at(50)
	p99, _ := l.at(99)
	most, _ := l.at(100)
	return fmt.Sprintf("p50 %v, p99 %v, max %v", p50, p99, most)
}

// pod is a pod with one container.
type pod struct {
	uid, resource string
	ids           []string          // the IDs by which the kubelet knows its devices
	devices       []string          // the allocated devices, or the members of allocated bundles
	things        map[string]string // nodes that the pod got and may open until it ends, with the IDs of their devices
	started       bool
}

// sequence is a node with its history of random steps.
type sequence struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand // random source of the current step
	setup   setup
	machine *udevtest.Machine
	*hardware
	kubelet *kubelet // nil while it does not run
	parts   *parts   // nil while the daemon does not run
	journal journal
	said    []string // descriptions of the steps
	lags    *lags

	podsMu  sync.Mutex // also used by the kubelet
	pods    []*pod
	count   int
	bundles int // number of bundles that pods got
	// slow are devices that only the checkpoint has named. It may take minutes until they count as free.
	slow map[string]bool
}

func newSequence(t *testing.T, seed uint64, bundled bool) *sequence {
	s := &sequence{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), slow: map[string]bool{}, hardware: &hardware{widgets: map[string]string{}}}
	s.has = s.podHas
	dir := shortDir(t)
	for n := range 4 {
		s.disks = append(s.disks, &disk{serial: fmt.Sprintf("%032x", n+1)})
	}
	if bundled { // without these devices there is hardly ever a bundle
		for n, d := range s.disks {
			s.plugWidget(fmt.Sprintf("widget%d", n), fmt.Sprintf("W%d", n))
			s.plug(d, n+1)
		}
	}
	s.machine = newMachine(t, s.hardware)
	s.setup = setup{
		source: s.machine, root: s.machine.Root(), touch: *s.touch(), dir: filepath.Join(dir, "k"), state: filepath.Join(dir, "s"),
		shares: 1 + s.random.IntN(2), hold: seed%2 == 0, care: cares[s.random.IntN(len(cares))],
		log: slog.New(slog.NewTextHandler(&s.journal, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	if bundled {
		s.setup.shares, s.setup.bundle = 1, 1+int(seed/2%2)
	}
	s.must(os.Mkdir(s.setup.dir, 0o755))
	t.Cleanup(func() {
		s.daemonStop()
		s.kubeletStop()
		if t.Failed() {
			test, _, _ := strings.Cut(t.Name(), "/")
			t.Logf("to play it again: go test -race -tags integration ./integration/faults -run '%s$' -sequences 1 -seed %d -steps %d", test, seed, *steps)
			t.Logf("care: %+v, shares: %d\nsteps:\n%s\nlog:\n%s", s.setup.care, s.setup.shares, strings.Join(s.said, "\n"), s.journal.String())
		}
	})
	return s
}

// cares are the possible settings for a resource for disks.
var cares = []config.Resource{
	resourceConfig(config.None, config.None, config.WhenStart, 0),
	resourceConfig(config.Auto, config.None, config.WhenStart, 0),
	resourceConfig(config.Auto, "discard", config.WhenStart, 10*time.Second),
	resourceConfig(config.None, "discard", config.WhenRelease, 10*time.Second),
	resourceConfig(config.Auto, "discard", config.WhenBoth, 10*time.Second),
}

// resourceConfig returns the configuration of a resource for disks.
func resourceConfig(method, scrub, when string, timeout time.Duration) config.Resource {
	return config.Resource{Reset: config.ResourceReset{Method: method, Scrub: scrub, When: when, Timeout: timeout}}
}

func (s *sequence) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("after %d steps: %v", len(s.said), err)
	}
}

func (s *sequence) say(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
	s.setup.log.Info("STEP " + s.said[len(s.said)-1])
}

// play plays the whole sequence. The daemon and the kubelet start in any order, and random steps follow. In the end all pods
// end, and all remaining devices must be healthy.
func (s *sequence) play() {
	starts := []func(){s.daemonStart, s.kubeletStart}
	s.random.Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	for _, start := range starts {
		start()
	}
	for n := uint64(1); len(s.said) < *steps; n++ {
		s.random = rand.New(rand.NewPCG(s.seed, n)) // independent of the random numbers of earlier steps
		s.step()
		quiet := time.Now()
		s.must(eventually(s.check))
		s.lags.add(time.Since(quiet))
	}
	for _, p := range s.podList() {
		s.release(p)
	}
	s.settlePods()
	s.must(eventually(s.check))
}

// step makes one random step.
func (s *sequence) step() {
	all := []struct {
		weight int
		do     func()
	}{
		{5, s.stepPlug},
		{4, s.stepUnplug},
		{2, s.stepSick},
		{3, s.stepWell},
		{6, s.stepAllocate},
		{6, s.stepStart},
		{4, s.stepRelease},
		{3, s.settlePods},
		{2, s.stepUnplugDuringAllocate},
		{2, s.stepMove},
		{2, s.stepLostEvents},
		{1, s.stepFlood},
		{1, s.stepEraseFails},
		{1, s.stepSockets},
		{2, s.stepDaemonRestart},
		{2, s.stepDaemonCrash},
		{2, s.stepKubeletRestart},
		{1, s.stepBothRestart},
	}
	if s.setup.bundle > 0 {
		all[0].weight, all[4].weight, all[5].weight = 8, 9, 9 // with other weights, bundles are seldom complete
		all = append(all, struct {
			weight int
			do     func()
		}{3, s.stepReload})
	}
	total := 0
	for _, a := range all {
		total += a.weight
	}
	at := s.random.IntN(total)
	for _, a := range all {
		if at -= a.weight; at < 0 {
			a.do()
			return
		}
	}
}

// pick returns a random disk that meets a condition, or nil.
func (s *sequence) pick(wanted func(*disk) bool) *disk {
	var all []*disk
	for _, d := range s.disks {
		if wanted(d) {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[s.random.IntN(len(all))]
}

func plugged(d *disk) bool { return d.slot > 0 }

// free returns a slot without a disk.
func (s *sequence) free() int {
	for {
		if slot := 1 + s.random.IntN(8); s.in(slot) == nil {
			return slot
		}
	}
}

// apply publishes the current hardware.
func (s *sequence) apply() { s.machine.Apply(s.text()) }

func (s *sequence) stepPlug() {
	if s.random.IntN(3) == 0 {
		name := fmt.Sprintf("widget%d", s.random.IntN(4))
		serial := fmt.Sprintf("W%d", s.random.IntN(6))
		for other, taken := range s.widgets {
			if taken == serial {
				delete(s.widgets, other)
			}
		}
		s.say("plug %s with serial %s", name, serial)
		s.plugWidget(name, serial)
	} else if d := s.pick(func(d *disk) bool { return !plugged(d) }); d != nil {
		s.plug(d, s.free())
		s.say("plug %s into slot %d", d.serial[30:], d.slot)
	}
	s.apply()
}

func (s *sequence) stepUnplug() {
	if d := s.pick(plugged); d != nil && s.random.IntN(3) > 0 {
		s.say("unplug %s", d.serial[30:])
		s.unplug(d)
	} else {
		s.unplugWidget()
	}
	s.apply()
}

// unplugWidget unplugs a random widget, if there is one.
func (s *sequence) unplugWidget() {
	if names := slices.Sorted(maps.Keys(s.widgets)); len(names) > 0 { // the order of a map varies
		name := names[s.random.IntN(len(names))]
		s.say("unplug %s", name)
		delete(s.widgets, name)
	}
}

// stepSick makes a disk unhealthy, but not so often that the daemon distrusts it for minutes.
func (s *sequence) stepSick() {
	if d := s.pick(func(d *disk) bool { return plugged(d) && !d.sick && d.falls < 3 }); d != nil {
		s.say("%s is sick", d.serial[30:])
		d.sick, d.falls = true, d.falls+1
		s.apply()
	}
}

func (s *sequence) stepWell() {
	if d := s.pick(func(d *disk) bool { return d.sick }); d != nil {
		s.say("%s is well", d.serial[30:])
		d.sick = false
		s.apply()
	}
}

// podList returns the current pods.
func (s *sequence) podList() []*pod {
	s.podsMu.Lock()
	defer s.podsMu.Unlock()
	return slices.Clone(s.pods)
}

func (s *sequence) uids() []string {
	var all []string
	for _, p := range s.podList() {
		all = append(all, p.uid)
	}
	return all
}

// admit tries to admit a pod, and reports whether it got its devices.
func (s *sequence) admit(resource string, n int) bool {
	s.count++
	p := &pod{uid: fmt.Sprintf("pod%d", s.count), resource: resource}
	if s.random.IntN(5) == 0 {
		p.uid += initOnly
	}
	s.remember(p)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	ids, answer, err := s.kubelet.allocate(ctx, p.uid, resource, n, func(ids []string) {
		s.random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	})
	if err != nil {
		s.say("%s is not admitted: %v", p.uid, err)
		s.forget(p)
		return false
	}
	p.ids = ids
	for _, id := range ids {
		members := []string{id}
		if note, ok := answer.GetAnnotations()["metalplug.io/"+id]; ok {
			members = nil
			s.bundles++
			for member := range strings.SplitSeq(note, ",") {
				_, member, _ = strings.Cut(member, "=")
				members = append(members, member)
			}
		}
		p.devices = append(p.devices, members...)
		for _, member := range append(members, id) {
			device, _, _ := strings.Cut(member, "::")
			s.slow[device] = s.slow[device] || strings.HasSuffix(p.uid, initOnly)
		}
	}
	p.things = s.recordNodes(p.uid, p.devices, answer.GetDevices())
	s.say("%s has %v", p.uid, p.ids)
	if s.setup.care.Reset.AtRelease() {
		s.checkGiven(p.uid, p.devices)
	}
	return true
}

func (s *sequence) remember(p *pod) {
	s.podsMu.Lock()
	defer s.podsMu.Unlock()
	s.pods = append(s.pods, p)
}

func (s *sequence) forget(p *pod) {
	s.podsMu.Lock()
	defer s.podsMu.Unlock()
	s.pods = remove(s.pods, p)
}

func (s *sequence) stepAllocate() {
	resource := diskResource
	if s.random.IntN(3) == 0 {
		resource = widgetResource
	}
	if s.setup.bundle > 0 && s.random.IntN(3) > 0 {
		resource = bundleResource
	}
	s.admit(resource, 1+s.random.IntN(2))
}

// stepReload removes the bundles from the configuration, or adds them again.
func (s *sequence) stepReload() {
	s.setup.apart = !s.setup.apart
	s.say("the configuration has no bundles: %v", s.setup.apart)
	select {
	case <-s.parts.inventory.SetRules(s.setup.rules(), s.setup.checkpointDevices()):
	case <-time.After(patience):
		s.t.Fatalf("the new configuration does not apply after %v", patience)
	}
}

// stepStart starts the container of a pod, possibly again.
func (s *sequence) stepStart() {
	pods := s.podList()
	if len(pods) == 0 {
		return
	}
	p := pods[s.random.IntN(len(pods))]
	s.end(p.uid) // the previous container has ended
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	err := s.kubelet.start(ctx, p.resource, p.ids)
	s.say("start of %s: %v", p.uid, err)
	if err == nil {
		p.started = true
		s.work(p.uid, p.devices)
		s.apply()
	}
}

func (s *sequence) stepRelease() {
	if pods := s.podList(); len(pods) > 0 {
		s.release(pods[s.random.IntN(len(pods))])
	}
}

// release ends a pod. Neither the daemon nor the kubelet gets an event.
func (s *sequence) release(p *pod) {
	s.say("%s ends", p.uid)
	s.end(p.uid)
	s.forget(p)
}

// settlePods makes the daemon query the kubelet until it knows which devices are free, and waits until these are
// cleared.
func (s *sequence) settlePods() {
	s.say("the kubelet is asked")
	s.must(eventually(func() error {
		s.kubelet.askInVain(s.t.Context())
		if err := s.parts.ask(s.t.Context()); err != nil {
			return err
		}
		return s.checkSettled()
	}))
}

// checkSettled returns an error if a free device does not count as free yet, or is not cleared.
func (s *sequence) checkSettled() error {
	snapshot, _ := s.parts.inventory.Snapshot()
	for _, offer := range snapshot.Offers {
		for _, d := range offer.Devices {
			if d.Held() && !s.holds(d.Device.ID) && !s.slow[d.Device.ID] {
				return fmt.Errorf("%s is free and counts as held", d.Device.ID)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.disks {
		kept := d.moved || d.unknown || d.failed || s.slow[d.id()]
		if s.setup.care.Reset.AtRelease() && d.content != "" && plugged(d) && !kept && !s.holds(d.id()) {
			return fmt.Errorf("%s is not cleared: %s is on it", d.serial, d.content)
		}
	}
	return s.checkCombined()
}

// checkCombined returns an error if devices that no pod holds could form a bundle and are in none. A disk with a pod's data is
// included only if it is erased before the next start. The caller holds mu.
func (s *sequence) checkCombined() error {
	if s.setup.bundle == 0 || s.setup.apart {
		return nil
	}
	snapshot, _ := s.parts.inventory.Snapshot()
	alone := func(place, id string) bool {
		status := snapshot.Find(id)
		return !s.slow[id] && !s.holds(id) && !s.hasOldDevice(place, id) && (status == nil || status.Bundle == "")
	}
	var disks, widgets []string
	for _, d := range s.disks {
		erasable := s.setup.care.Rule().ErasedAtStart && !d.moved && !d.unknown
		if plugged(d) && !d.sick && !d.failed && (d.content == "" || erasable) && alone(d.node(), d.id()) {
			disks = append(disks, d.serial[30:])
		}
	}
	for name, serial := range s.widgets {
		if alone(name, widgetID(serial)) {
			widgets = append(widgets, name)
		}
	}
	if len(disks) >= s.setup.bundle && len(widgets) > 0 {
		return fmt.Errorf("the disks %v and %v make up a bundle of %d disks and are in none", disks, widgets, s.setup.bundle)
	}
	return nil
}

// holds reports whether any pod has a device.
func (s *sequence) holds(id string) bool {
	return slices.ContainsFunc(s.podList(), func(p *pod) bool { return p.has(id) })
}

// podHas reports whether the given pod has a device.
func (s *sequence) podHas(uid, id string) bool {
	return slices.ContainsFunc(s.podList(), func(p *pod) bool { return p.uid == uid && p.has(id) })
}

// has reports whether a pod has a device, or a share of it.
func (p *pod) has(id string) bool {
	return slices.ContainsFunc(slices.Concat(p.ids, p.devices), func(held string) bool { return held == id || strings.HasPrefix(held, id+"::") })
}

// stepUnplugDuringAllocate removes a disk at a random moment of an admission.
func (s *sequence) stepUnplugDuringAllocate() {
	d := s.pick(plugged)
	if d == nil {
		return
	}
	s.say("unplug %s during an admission", d.serial[30:])
	s.pull(d)
	text, wait := s.text(), time.Duration(s.random.IntN(1000))*time.Microsecond
	var pulling sync.WaitGroup
	pulling.Go(func() {
		<-time.After(wait)
		s.machine.Apply(text)
	})
	s.admit(diskResource, 1)
	pulling.Wait()
	s.unplug(d)
}

// stepMove moves a disk to another slot without a pause.
func (s *sequence) stepMove() {
	if d := s.pick(plugged); d != nil {
		s.unplug(d)
		s.plug(d, s.free())
		s.say("%s is in slot %d now", d.serial[30:], d.slot)
		s.apply()
	}
}

// stepLostEvents changes hardware without events, except for the report that events were lost.
func (s *sequence) stepLostEvents() {
	s.say("events are lost")
	if d := s.pick(plugged); d != nil {
		s.unplug(d)
	}
	if d := s.pick(func(d *disk) bool { return !plugged(d) }); d != nil {
		s.plug(d, s.free())
	}
	s.machine.Silently(s.text())
	s.machine.Send(udev.Event{Action: udev.Overflow})
}

// stepFlood sends events without any change.
func (s *sequence) stepFlood() {
	s.say("a flood of events")
	devices, err := s.machine.Enumerate()
	s.must(err)
	for range 20 {
		for _, d := range devices {
			s.machine.Send(udev.Event{Action: []string{"add", "change", "bind", "remove"}[s.random.IntN(4)], Device: d})
		}
	}
}

// stepEraseFails makes the erasure of a disk fail, or succeed again.
func (s *sequence) stepEraseFails() {
	if d := s.pick(func(*disk) bool { return true }); d != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		d.failing = !d.failing
		s.say("erasing %s fails: %v", d.serial[30:], d.failing)
	}
}

// stepSockets removes the daemon's sockets.
func (s *sequence) stepSockets() {
	s.say("the daemon's sockets are removed")
	names, err := filepath.Glob(filepath.Join(s.setup.dir, "mp-*"))
	s.must(err)
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.must(err)
		}
	}
}

func (s *sequence) daemonStart() {
	p, err := s.setup.run()
	s.parts = p
	s.must(err)
}

func (s *sequence) daemonStop() {
	if s.parts != nil {
		if err := s.parts.stop(); err != nil {
			s.t.Errorf("stop the daemon: %v", err)
		}
		s.parts = nil
	}
}

func (s *sequence) kubeletStart() {
	k, err := startKubelet(s.setup.dir, s.uids)
	s.must(err)
	s.kubelet = k
}

func (s *sequence) kubeletStop() {
	if s.kubelet != nil {
		s.kubelet.stop()
		if err := s.kubelet.failure(); err != nil {
			s.t.Errorf("the kubelet would have crashed: %v", err)
		}
		s.kubelet = nil
	}
}

func (s *sequence) stepDaemonRestart() {
	s.say("the daemon is restarted")
	s.daemonStop()
	s.daemonStart()
}

// stepDaemonCrash restarts the daemon with the state that was on disk when it stopped. If a disk appeared and was given to a
// pod at that moment, there may be no state. In that case only the kubelet knows about the disk, and nothing is known about
// its content.
func (s *sequence) stepDaemonCrash() {
	s.say("the daemon crashes")
	file := filepath.Join(s.setup.state, "state.json")
	text, err := os.ReadFile(file)
	s.daemonStop()
	if errors.Is(err, os.ErrNotExist) {
		s.must(cmp.Or(os.RemoveAll(s.setup.state), nil))
	} else {
		s.must(errors.Join(err, os.WriteFile(file, text, 0o600)))
	}
	for _, d := range s.disks {
		d.unknown = d.unknown || s.holds(d.id()) && !strings.Contains(string(text), d.id())
	}
	s.daemonStart()
}

func (s *sequence) stepKubeletRestart() {
	s.say("the kubelet is restarted")
	s.kubeletStop()
	s.kubeletStart()
}

func (s *sequence) stepBothRestart() {
	s.say("both are restarted, and meanwhile there is other hardware")
	s.kubeletStop()
	s.daemonStop()
	if d := s.pick(plugged); d != nil {
		s.unplug(d)
	}
	if d := s.pick(func(d *disk) bool { return !plugged(d) }); d != nil {
		s.plug(d, s.free())
	}
	s.machine.Silently(s.text())
	s.daemonStart()
	s.kubeletStart()
}

// check checks for forbidden states, and whether the device list already matches the hardware.
func (s *sequence) check() error {
	if err := errors.Join(s.kubelet.failure(), s.failure(), s.checkShares()); err != nil {
		return fmt.Errorf("%w: %w", errNever, err)
	}
	disks, widgets := s.kubelet.view(diskResource), s.kubelet.view(widgetResource)
	if disks == nil || widgets == nil {
		return errors.New("not registered")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.setup.bundle > 0 {
		return errors.Join(s.checkBundles(), s.checkPlaces())
	}
	for _, d := range s.disks {
		healthy := disks[d.id()] == pluginapi.Healthy
		switch {
		case healthy && (!plugged(d) || d.sick):
			return fmt.Errorf("%s is offered: plugged in %v, sick %v", d.serial, plugged(d), d.sick)
		case !healthy && plugged(d) && !d.sick && d.content == "" && !d.failed && !s.hasOldDevice(d.node(), d.id()):
			return fmt.Errorf("%s is not offered: it is %q", d.serial, disks[d.id()])
		}
	}
	return errors.Join(s.checkWidgets(widgets), s.checkPlaces())
}

// checkBundles compares the offered bundles with the existing devices. The caller holds mu.
func (s *sequence) checkBundles() error {
	snapshot, _ := s.parts.inventory.Snapshot()
	in := make(map[string]string)
	for id, health := range s.kubelet.view(bundleResource) {
		bundle := snapshot.Find(id)
		if bundle == nil {
			return fmt.Errorf("%s is offered and is not known", id)
		}
		if len(bundle.Members) != 1+s.setup.bundle && health == pluginapi.Healthy {
			return fmt.Errorf("%s is offered with %d members", id, len(bundle.Members))
		}
		if held := slices.ContainsFunc(bundle.Members, func(m *inventory.Status) bool { return m.Held() }); held != bundle.Held() {
			return fmt.Errorf("%s counts as held: %v, and its members: %v", id, bundle.Held(), held)
		}
		for _, m := range bundle.Members {
			member := m.Device.ID
			for _, resource := range []string{diskResource, widgetResource} {
				if _, ok := s.kubelet.view(resource)[member]; ok {
					return fmt.Errorf("%s is offered by %s and in %s", member, resource, id)
				}
			}
			if other := in[member]; other != "" {
				return fmt.Errorf("%s is in %s and in %s", member, id, other)
			}
			in[member] = id
			d := s.find(member)
			there := d != nil && plugged(d) && !d.sick || slices.ContainsFunc(slices.Collect(maps.Values(s.widgets)), func(serial string) bool {
				return widgetID(serial) == member
			})
			if health == pluginapi.Healthy && !there {
				return fmt.Errorf("%s is offered, and its member %s is not there", id, member)
			}
		}
	}
	return nil
}

// hasOldDevice reports whether a pod still holds another device that was in this place before. Such a pod can open the device
// that is there now.
func (s *sequence) hasOldDevice(place, id string) bool {
	snapshot, _ := s.parts.inventory.Snapshot()
	for other := range s.were[place] {
		if status := snapshot.Find(other); other != id && status != nil && status.Held() {
			return true
		}
	}
	return false
}

// checkWidgets compares the offered widgets with the existing ones.
func (s *sequence) checkWidgets(list map[string]string) error {
	serials, opened := make(map[string]bool), 0
	for name, serial := range s.widgets {
		serials[serial] = true
		if s.hasOldDevice(name, widgetID(serial)) {
			opened++
		}
	}
	n := 0
	for id, health := range list {
		if health != pluginapi.Healthy {
			continue
		}
		n++
		name, _, _ := strings.Cut(id, "::")
		if !serials[strings.TrimSuffix(strings.TrimPrefix(name, "node-"), "-widget")] {
			return fmt.Errorf("%s is offered and is not there", id)
		}
	}
	if most := len(serials) * s.setup.shares; n > most || n < most-opened*s.setup.shares {
		return fmt.Errorf("%d widgets are offered, %d are there with %d shares, of which %d may be open: %v", n, len(serials), s.setup.shares, opened, list)
	}
	return nil
}

// checkPlaces compares the known place of each offered device with its actual place. A device keeps its ID when it
// moves. The caller holds mu.
func (s *sequence) checkPlaces() error {
	snapshot, _ := s.parts.inventory.Snapshot()
	for _, offer := range snapshot.Offers {
		for _, d := range offer.Devices {
			for _, part := range d.Parts() {
				if nodes := part.Allocation.Nodes; d.Healthy && (len(nodes) != 1 || s.behind(nodes[0].Host) != part.Device.ID) {
					return fmt.Errorf("%s is offered as %v", part.Device.ID, nodes)
				}
			}
		}
	}
	return nil
}

// checkShares returns an error for an ID that two pods have, and for a device whose nodes are given to more pods than allowed.
func (s *sequence) checkShares() error {
	had, owners, opens := make(map[string]string), make(map[string][]string), make(map[string]string)
	for _, p := range s.podList() {
		for _, id := range p.ids {
			if other := had[id]; other != "" {
				return fmt.Errorf("%s has %s, and so has %s", p.uid, id, other)
			}
			had[id] = p.uid
		}
		for node, thing := range p.things {
			switch other := opens[node]; {
			case other != "" && other != thing:
				return fmt.Errorf("%s was given %s, and can open %s or is opened by its pod: %s", p.uid, thing, other, node)
			case p.started:
				opens[node] = thing
			}
			owners[thing] = append(owners[thing], p.uid)
			if most := s.most(thing); len(owners[thing]) > most {
				return fmt.Errorf("%v were given the nodes of %s, which is for %d", owners[thing], thing, most)
			}
		}
	}
	return nil
}

// most returns the maximum number of pods that may have a device.
func (s *sequence) most(id string) int {
	if s.find(id) == nil { // a widget
		return s.setup.shares
	}
	return 1
}
