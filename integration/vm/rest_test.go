//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// The number of observations of an idle daemon, and the duration of each in seconds.
const (
	watches = 16
	watched = 5
)

// atRestCost measures a running metalplugd. It prints the number of wake-ups in each observation, then the total ticks of
// CPU time, resident KiB and descriptors. The number of wake-ups of a thread is the number of times that it has gone to
// sleep (proc_pid_status(5)). CPU time is counted in ticks of 10 ms (proc_pid_stat(5)).
const atRestCost = `pid=$(systemctl show --value --property MainPID metalplugd)
wakes() { awk '/^voluntary_ctxt_switches/ {n += $2} END {print n}' /proc/$pid/task/*/status; }
ticks() { awk '{print $14 + $15}' /proc/$pid/stat; }
c=$(ticks); before=$(wakes); i=0
while [ $i -lt %d ]; do
	sleep %d; after=$(wakes); echo -n "$((after - before)),"; before=$after; i=$((i + 1))
done
echo " $(($(ticks) - c)) $(awk '/^VmRSS/ {print $2}' /proc/$pid/status) $(ls /proc/$pid/fd | wc -l)"`

// testRest checks that an idle daemon does nothing, except that once a minute it checks properties that no event reports. It
// prints the cost. In most observations nothing may wake the daemon, so polling every ten seconds is a failure. It returns the
// number of the daemon's descriptors.
func testRest(s *story, t *testing.T) (descriptors int) {
	t.Helper()
	wakes, descriptors := s.countWakeups(t)
	silent := 0
	for _, n := range wakes {
		if n <= 1 { // one wake-up may be a timer of the Go runtime
			silent++
		}
	}
	if silent <= watches/2 {
		t.Errorf("in %d of %d times %d s with nothing to do it slept: it woke up %v times", silent, watches, watched, wakes)
	}
	return descriptors
}

// countWakeups returns the number of wake-ups in each observation, and the number of descriptors afterwards.
func (s *story) countWakeups(t *testing.T) (wakes []int, descriptors int) {
	t.Helper()
	var list string
	var ticks, kib int
	said := s.m.Sh(fmt.Sprintf(atRestCost, watches, watched))
	if _, err := fmt.Sscan(said, &list, &ticks, &kib, &descriptors); err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	total := 0
	for text := range strings.SplitSeq(strings.Trim(list, ","), ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%q: %v", said, err)
		}
		wakes, total = append(wakes, n), total+n
	}
	perHour := float64(ticks) / 100 / (watches * watched) * 3600
	t.Logf("at rest %d times for %d s: %d wake-ups (%s), %.1f CPU seconds an hour, %d KiB resident, %d descriptors",
		watches, watched, total, list, perHour, kib, descriptors)
	return wakes, descriptors
}

// clockJumps sets the clock, as NTP does on a machine with an empty battery. No event may be lost or delayed.
func clockJumps(s *story, t *testing.T) {
	defer s.m.Sh("date --set='1 day'")
	ids := s.healthy(nvme)
	s.m.Sh("date --set='400 days'")
	s.m.Plug(plugged[0])
	s.await(t, nvme, atRest+1)
	s.m.Sh("date --set='401 days ago'")
	s.m.Unplug(plugged[0])
	after := s.await(t, nvme, atRest)
	if fmt.Sprint(after) != fmt.Sprint(ids) {
		t.Errorf("healthy devices were %v and are %v", ids, after)
	}
}
