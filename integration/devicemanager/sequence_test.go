// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	sequences = flag.Int("sequences", 60, "how many random sequences are played")
	steps     = flag.Int("steps", 30, "how many steps each has")
	seed      = flag.Uint64("seed", 0, "the seed of the first one; play one again with -sequences 1 -seed N")
)

// players is the number of sequences that run at the same time. They mostly wait.
const players = 8

// TestSequences plays random sequences of events on a node, each with a topology policy. After each step it checks for
// forbidden states, and waits for the expected state.
func TestSequences(t *testing.T) {
	began, done := time.Now(), atomic.Int64{}
	var playing sync.WaitGroup
	next := make(chan uint64)
	for range players {
		playing.Go(func() {
			for n := range next {
				t.Run(fmt.Sprintf("seed=%d", n), func(t *testing.T) {
					s := newSequence(t, n)
					s.play()
					done.Add(int64(len(s.said)))
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
	t.Logf("%d sequences, %d steps in %v", *sequences, done.Load(), time.Since(began).Round(time.Second))
}

// part is a widget that may be plugged in.
type part struct {
	widget      // its slot is zero while the widget is not plugged in
	falls  int  // maximum number of times that the daemon has seen the widget become unhealthy
	slow   bool // the device may count as free only after minutes
}

func (p *part) plugged() bool { return p.slot > 0 }

func (p *part) well() bool { return p.plugged() && !p.sick }

// tenant is a pod with widgets.
type tenant struct {
	uid       string
	container string // container that has the widgets
	ids       []string
	running   bool // the container runs
}

// sequence is a node with its random events. The kubelet and the daemon are real. The other fields have the data for the
// checks.
type sequence struct {
	t      *testing.T
	seed   uint64
	policy string
	random *rand.Rand // random source of this step
	said   []string   // descriptions of the steps

	kubelet   *Kubelet
	proxy     *proxy // proxy between the kubelet and the daemon, or nil
	daemon    *daemon
	up        bool // the kubelet runs
	serving   bool // the daemon runs
	sprockets bool // the configuration has sprockets
	parts     []*part
	pods      []*tenant
	count     int // number of pods
}

// newSequence returns a node with some widgets. The seed determines the topology policy, and whether there is a proxy.
func newSequence(t *testing.T, seed uint64) *sequence {
	s := &sequence{t: t, seed: seed, policy: policies[seed/2%4], up: true, serving: true, sprockets: true}
	s.random = rand.New(rand.NewPCG(seed, 0))
	for n := range 6 {
		s.parts = append(s.parts, &part{widget: widget{n: n, numa: n % 2}})
		if s.random.IntN(2) == 0 {
			s.parts[n].slot = s.free()
		}
	}
	o := Options{Dir: memoryDir(t), TopologyPolicy: s.policy, NUMANodes: 2, FirstBatch: OnDemand}
	if seed%2 == 0 {
		s.kubelet = newNode(t, o)
	} else {
		s.kubelet, s.proxy = behindProxy(t, o)
	}
	s.daemon = newDaemonIn(t, memoryDir(t), s.kubelet.options.Dir, s.hardware())
	s.daemon.awaitReady()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("topology policy %s; after these steps:\n%s\nonce more: go test -count=1 -run '^TestSequences$' . -sequences 1 -steps %d -seed %d",
				s.policy, strings.Join(s.said, "\n"), *steps, seed)
		}
	})
	return s
}

// memoryDir returns a short directory that is not on a disk. The kubelet and the daemon write files there in each step,
// which would be slow on a busy disk. The kubelet processes no list during its write.
func memoryDir(t *testing.T) string {
	t.Helper()
	const memory = "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		return shortDir(t)
	}
	dir, err := os.MkdirTemp(memory, "mp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *sequence) say(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

// play plays the whole sequence. At the end all devices must be healthy and free.
func (s *sequence) play() {
	s.settle()
	for n := uint64(1); len(s.said) < *steps; n++ {
		s.random = rand.New(rand.NewPCG(s.seed, n)) // independent of the random numbers of earlier steps
		before := len(s.said)
		if s.step(); len(s.said) > before {
			s.settle()
		}
	}
	s.finish()
}

// finish brings all devices back and ends every pod. Then a pod can get each widget, one by one.
func (s *sequence) finish() {
	s.stepDaemonStart()
	s.stepKubeletBoot()
	for _, p := range slices.Clone(s.pods) {
		s.remove(p)
	}
	for _, p := range s.parts {
		if p.sick = false; !p.plugged() {
			s.plug(p)
		}
	}
	s.apply()
	s.settle()
	for range s.parts {
		s.run(s.admit(1))
	}
	s.settle()
}

// step makes one random event, chosen by weight. The event may have no effect.
func (s *sequence) step() {
	all := []struct {
		weight int
		do     func()
	}{
		{5, s.stepPlug},
		{4, s.stepUnplug},
		{2, s.stepSick},
		{2, s.stepWell},
		{7, s.stepAdmit},
		{6, s.stepRun},
		{2, s.stepExit},
		{4, s.stepRemove},
		{3, s.stepUnplugDuringAdmission},
		{2, s.stepReload},
		{1, s.stepForget},
		{1, s.stepSockets},
		{2, s.stepDaemonKill},
		{1, s.stepDaemonStop},
		{9, s.stepDaemonStart},
		{3, s.stepKubeletKill},
		{9, s.stepKubeletBoot},
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

// pick returns a random widget that meets a condition, or nil.
func (s *sequence) pick(wanted func(*part) bool) *part {
	var all []*part
	for _, p := range s.parts {
		if wanted(p) {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[s.random.IntN(len(all))]
}

// free returns a slot without a widget.
func (s *sequence) free() int {
	taken := map[int]bool{}
	for _, p := range s.parts {
		taken[p.slot] = true
	}
	for {
		if slot := 1 + s.random.IntN(12); !taken[slot] {
			return slot
		}
	}
}

// hardware returns the widgets that are plugged in, and a sprocket that never changes.
func (s *sequence) hardware() []widget {
	all := []widget{{kind: "sprocket", numa: -1}}
	for _, p := range s.parts {
		if p.plugged() {
			all = append(all, p.widget)
		}
	}
	return all
}

// apply publishes the hardware.
func (s *sequence) apply() { s.daemon.plug(s.hardware()) }

// mostFalls is how often a widget may become unhealthy. After one more, the daemon would withhold it for minutes.
const mostFalls = 3

func (s *sequence) stepPlug() {
	if p := s.pick(func(p *part) bool { return !p.plugged() }); p != nil {
		s.plug(p)
		s.apply()
	}
}

// plug plugs a widget into any slot. Its health does not change.
func (s *sequence) plug(p *part) {
	p.slot = s.free()
	if p.sick = p.sick && p.falls < mostFalls; p.sick {
		p.falls++
	}
	s.say("W%d is plugged into slot %d, sick: %v", p.n, p.slot, p.sick)
}

func (s *sequence) stepUnplug() {
	if p := s.pick((*part).plugged); p != nil {
		s.say("W%d is unplugged", p.n)
		p.slot = 0
		s.apply()
	}
}

func (s *sequence) stepSick() {
	if p := s.pick(func(p *part) bool { return p.well() && p.falls < mostFalls }); p != nil {
		s.say("W%d is sick", p.n)
		p.sick, p.falls = true, p.falls+1
		s.apply()
	}
}

func (s *sequence) stepWell() {
	if p := s.pick(func(p *part) bool { return p.sick }); p != nil {
		s.say("W%d is well", p.n)
		p.sick = false
		s.apply()
	}
}

// stepReload reloads the daemon with another configuration. The new one has one resource more or less, which does not
// affect the widgets, or is invalid.
func (s *sequence) stepReload() {
	if !s.serving {
		return
	}
	if s.random.IntN(3) == 0 {
		s.say("a bad configuration")
		s.daemon.reload("this is no TOML")
	} else {
		s.sprockets = !s.sprockets
		s.say("the configuration is reloaded, sprockets: %v", s.sprockets)
		s.daemon.reload(s.resources())
	}
	s.daemon.awaitReady()
	s.daemon.configure(s.resources()) // applies at the next start
}

func (s *sequence) resources() string {
	if s.sprockets {
		return widgets + sprockets
	}
	return widgets
}

// stepSockets removes the daemon's sockets. The daemon creates them again.
func (s *sequence) stepSockets() {
	if s.serving {
		s.say("the daemon's sockets are removed")
		unlinkOwn(s.daemon)
	}
}

func (s *sequence) stepDaemonKill() {
	if s.serving {
		s.say("the daemon is killed")
		s.daemon.kill()
		s.serving = false
	}
}

func (s *sequence) stepDaemonStop() {
	if s.serving {
		s.say("the daemon is stopped")
		s.daemon.stop()
		s.serving = false
	}
}

func (s *sequence) stepDaemonStart() {
	if !s.serving {
		s.say("the daemon is started")
		s.daemon.start()
		s.daemon.awaitReady()
		s.serving = true
	}
}

func (s *sequence) stepKubeletKill() {
	if s.up && s.saves() {
		s.say("the kubelet is killed")
		s.kubelet.Kill()
		if s.up = false; s.proxy != nil {
			s.proxy.stop() // otherwise the daemon would register with the proxy
		}
	}
}

// stepKubeletBoot starts the kubelet again. The kubelet admits the pods immediately, or after it has received the devices.
// The test lets it admit them immediately only if the result is the same for all pods.
func (s *sequence) stepKubeletBoot() {
	if s.up {
		return
	}
	atOnce := s.random.IntN(2) == 0 && !slices.ContainsFunc(s.pods, func(p *tenant) bool { return !p.running })
	s.say("the kubelet is started, pods are admitted at once: %v", atOnce)
	if err := s.kubelet.Boot(within(s.t)); err != nil {
		s.t.Fatal(err)
	}
	if s.up = true; !atOnce {
		s.settleOffer()
	}
	s.readmitted(s.kubelet.FirstBatch(within(s.t)))
}
