// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
)

func surveyOf0(from int64) Request {
	return Request{Do: Survey, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}, From: from}
}

// TestSurveyIsInterrupted checks that an interrupted survey reports its progress, and that the next one continues there. A
// disk that takes half a second for each read must also be read to its end.
func TestSurveyIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := oneNVMe(t)
		n.enlarge()
		var from atomic.Int64
		n.onRead = func(offset int64, length int) {
			time.Sleep(time.Second / 2)
			from.Store(offset)
		}
		r := surveyOf0(0)
		r.TimeoutMS = 15000
		total := 0
		for r.From < int64(len(n.data)) {
			got := m.full(r)
			if got.Result != OK || got.Content != "" || got.Read <= r.From || got.Size != int64(len(n.data)) {
				t.Fatalf("from %d: answer is %+v", r.From, got)
			}
			r.From = got.Read
			if total++; total > 10 {
				t.Fatal("it does not come to an end")
			}
		}
		if total != 2 {
			t.Errorf("it took %d surveys of 15 s, for 40 stretches of 0.5 s", total)
		}
	})
}

// TestWriteDuringSurvey checks that a survey notices a process that writes to blocks that were already read, even if the
// process ends before the survey.
func TestWriteDuringSurvey(t *testing.T) {
	m, n := oneNVMe(t)
	n.enlarge()
	m.files(map[string]string{disk0 + "/stat": "0 0 0 0 0 0 0 0 0 0 0\n"})
	n.onRead = func(at int64, _ int) {
		if at == 60<<20 {
			n.noiseAt(40<<20, 1<<20)
			m.files(map[string]string{disk0 + "/stat": "0 0 0 0 256 0 2048 0 0 0 0\n"})
		}
	}
	got := m.full(Request{Do: Survey, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}})
	if got.Result != Busy || got.Read != 0 || got.Detail != "a process wrote to nvme0n1 while it was read" {
		t.Errorf("answer is %+v", got)
	}
}

// TestReadEndsWithClient checks that a survey ends when its client has disconnected.
func TestReadEndsWithClient(t *testing.T) {
	for _, do := range []Do{Survey, Probe} {
		t.Run(string(do), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				n.enlarge()
				asked, gone := context.WithCancel(t.Context())
				var reads atomic.Int64
				n.onRead = func(_ int64, length int) {
					if length < pieceSize {
						return
					}
					time.Sleep(time.Second)
					if reads.Add(1) == 9 {
						gone()
					}
				}
				r := surveyOf0(0)
				r.Do, r.TimeoutMS = do, minute
				a, err := exchange.Decode[Answer](m.reply(asked, 0, r.Encode()))
				if err != nil || reads.Load() > 9+readers || a.Read >= a.Size || len(m.open) > 0 {
					t.Errorf("after %d reads: %+v, %v", reads.Load(), a, err)
				}
			})
		})
	}
}

// qemu is a process that has disk0 open.
var qemu = []cgroup.Holder{{PID: 42, Comm: "qemu", Number: cgroup.Number{Block: true, Major: 259}}}

// TestClaimDuringSurvey checks that another process can claim the disk during a survey, and that the survey notices this.
func TestClaimDuringSurvey(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *machine, n *fakeNode)
		want   Result
		detail string
	}{
		{"mounted", func(m *machine, n *fakeNode) {
			m.files(map[string]string{"/proc/1/mountinfo": "30 22 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n"})
		}, Busy, "nvme0n1 is mounted on /data"},
		{"claimed", nil, Busy, "cannot be opened exclusively"},
		{"partitioned", func(m *machine, n *fakeNode) { m.partition(disk0+"/nvme0n1p1", "259:1") }, Busy, "has partitions now"},
		{"part of something", func(m *machine, n *fakeNode) { m.files(map[string]string{disk0 + "/holders/dm-0": ""}) }, Busy, "nvme0n1 is part of dm-0"},
		{"replaced", func(m *machine, n *fakeNode) { m.files(map[string]string{disk0 + "/diskseq": "10\n"}) }, Gone, "was replaced by another disk"},
		{"another medium", func(m *machine, n *fakeNode) { m.files(map[string]string{disk0 + "/wwid": "eui.02\n"}) }, Gone, `wwid is "eui.02"`},
		{"pulled", func(m *machine, n *fakeNode) { m.remove(disk0) }, Gone, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				n.enlarge()
				done := false
				var claimed atomic.Bool
				n.claimed = claimed.Load
				n.onRead = func(offset int64, length int) {
					if length == stretchSize {
						time.Sleep(time.Second / 2)
					}
					if offset == 40<<20 && length == stretchSize && !done {
						done = true
						if c.change == nil {
							claimed.Store(true)
							return
						}
						c.change(m, n)
					}
				}
				began := time.Now()
				got := m.full(surveyOf0(0))
				if got.Result != c.want || !strings.Contains(got.Detail, c.detail) || time.Since(began) > 15*time.Second {
					t.Errorf("after %v: %+v, want %v with %q", time.Since(began), got, c.want, c.detail)
				}
			})
		})
	}
}

// TestSurveyOfAnOpenDisk checks that a survey has no result if another process has the disk open when the read begins or
// ends.
func TestSurveyOfAnOpenDisk(t *testing.T) {
	for name, holders := range map[string][2][]cgroup.Holder{"before": {qemu, nil}, "after": {nil, qemu}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				m.others = holders[0]
				n.onRead = func(int64, int) { m.others = holders[1] }
				m.expect(surveyOf0(0), Busy, "nvme0n1 is open in process 42 (\"qemu\")")
			})
		})
	}
}

// TestSlowSurvey checks that a survey makes progress on a disk that needs longer for one read than the time limit.
func TestSlowSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, n := oneNVMe(t)
		n.enlarge()
		n.onRead = func(_ int64, length int) {
			if length == stretchSize {
				time.Sleep(9 * time.Second)
			}
		}
		r := surveyOf0(0)
		r.TimeoutMS = 8000
		if got := m.full(r); got.Result != OK || got.Read != stretchSize {
			t.Errorf("%+v, want %d bytes", got, stretchSize)
		}
	})
}
