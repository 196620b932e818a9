// SPDX-License-Identifier: Apache-2.0

package helper_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/helper"
	"github.com/metalplug/metalplug/daemon/reset"
	"github.com/metalplug/metalplug/daemon/turnover"
	"github.com/metalplug/metalplug/integration/exchangetest"
)

// serve answers on a socket, each connection separately, like the service manager.
func serve(t *testing.T, answer func(request []byte) []byte) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	t.Cleanup(func() { os.RemoveAll(dir) })
	exchangetest.Listen(t, socket, func(fd int) {
		request := make([]byte, exchange.MessageSize)
		if n, err := unix.Read(fd, request); err == nil && n > 0 {
			if reply := answer(request[:n]); reply != nil {
				unix.Write(fd, reply) // the client may no longer wait
			}
		}
	})
	return socket
}

// resetter simulates metalplug-reset. It records the requests and returns the answers of the test.
type resetter struct {
	t       *testing.T
	mu      sync.Mutex
	asked   []reset.Request
	answers []reset.Answer // returned in order, and the last one repeatedly
	during  func(reset.Request)
}

func (r *resetter) answer(message []byte) []byte {
	request, err := reset.ParseRequest(message)
	if err != nil {
		r.t.Errorf("%q: %v", message, err)
	}
	if r.during != nil {
		r.during(request)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, request)
	a := r.answers[0]
	if len(r.answers) > 1 {
		r.answers = r.answers[1:]
	}
	if request.Do != reset.Prepare {
		a.Done, a.Appearance = "", ""
	} else if a.Result == reset.OK {
		a.Done, a.Erased = cmp.Or(a.Done, "done so"), request.Scrub != ""
	}
	return a.Encode()
}

func (r *resetter) requests() []reset.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

func touching(t *testing.T, r *resetter) device.Touch {
	t.Helper()
	r.t = t
	return helper.Touch(config.Reset{Socket: serve(t, r.answer), Holders: "/nowhere"}, "/sys", "")
}

var target = device.Target{
	Class: "nvme", SysPath: "/sys/devices/pci0000:00/nvme/nvme0/nvme0n1", Disk: true, Sole: true,
	Identity: map[string]string{"wwid": "eui.1", "diskseq": "7"},
	Together: []string{"/sys/devices/pci0000:00/nvme/nvme0/nvme0n2"}, Fingerprint: unknown, Pods: []string{"0c1d"},
}

// unknown is the fingerprint of a pod's data.
const unknown = "0000000000000000:00000000000000000000000000000000"

func TestHelperRequests(t *testing.T) {
	asked := reset.Request{Target: target}
	asked.Disk, asked.Sole = false, false // a request does not contain them
	answered := device.Report{
		Content: "ext4", Fingerprint: unknown, Read: 8192, Size: 16384, Written: 7, Appearance: "8", Claimed: true, Done: "done so",
		Smart: device.Smart{Known: true, Warning: 1, Used: 2, Spare: 3, Temperature: -4, MediaErrors: 5},
	}
	spared := target
	spared.Offered = true
	for _, c := range []struct {
		name string
		do   func(context.Context, device.Touch) (device.Report, error)
		with func(*reset.Request)
	}{
		{"probe", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Probe(ctx, target, false)
		}, func(r *reset.Request) { r.Do = reset.Probe }},
		{"probe of a held one", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Probe(ctx, target, true)
		}, func(r *reset.Request) { r.Do = reset.Look }},
		{"probe of what will be erased", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Probe(ctx, spared, false)
		}, func(r *reset.Request) { r.Do = reset.Offer }},
		{"survey", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Survey(ctx, target, 4096)
		}, func(r *reset.Request) { r.Do, r.From = reset.Survey, 4096 }},
		{"reset", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Prepare(ctx, target, device.Work{Resource: "example.org/nvme", Method: "nvme-controller", Tenant: true})
		}, func(r *reset.Request) {
			r.Do, r.Work = reset.Prepare, device.Work{Resource: "example.org/nvme", Method: "nvme-controller", Tenant: true}
		}},
		{"erase by hand", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Prepare(ctx, target, device.Work{Resource: "example.org/nvme", Scrub: "zero", ByHand: true})
		}, func(r *reset.Request) {
			r.Do, r.Work = reset.Prepare, device.Work{Resource: "example.org/nvme", Scrub: "zero", ByHand: true}
		}},
		{"prove blank", func(ctx context.Context, touch device.Touch) (device.Report, error) {
			return touch.Prepare(ctx, target, device.Work{Resource: "example.org/nvme", Blank: true})
		}, func(r *reset.Request) {
			r.Do, r.Resource, r.Fingerprint = reset.Prepare, "example.org/nvme", reset.Blank
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &resetter{answers: []reset.Answer{{Result: reset.OK, Report: answered}}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			got, err := c.do(ctx, touching(t, r))
			requests := r.requests()
			if took := requests[0].Timeout(); took <= 0 || took > time.Minute-device.AnswerTime {
				t.Errorf("it may take %v: its answer that it took too long would not be heard", took)
			}
			want := asked
			want.TimeoutMS = requests[0].TimeoutMS
			c.with(&want)
			if !reflect.DeepEqual(requests, []reset.Request{want}) {
				t.Errorf("asked for %+v, want %+v", requests, want)
			}
			report := answered
			if report.Erased = want.Scrub != ""; want.Do != reset.Prepare {
				report.Done, report.Appearance = "", ""
			}
			if err != nil || !reflect.DeepEqual(got, report) {
				t.Errorf("%+v, %v; want %+v", got, err, report)
			}
		})
	}
}

func TestHelperAnswers(t *testing.T) {
	for result, want := range map[reset.Result]error{
		reset.Busy: device.ErrInUse, reset.Gone: device.ErrGone, reset.Refused: turnover.ErrUnfit, reset.Unsupported: turnover.ErrUnfit,
		reset.Failed: reset.Failed, reset.Malformed: reset.Malformed, reset.Late: device.ErrUnanswered, reset.Foreign: device.ErrForeign,
	} {
		r := &resetter{answers: []reset.Answer{{Result: result, Detail: "it is so"}}}
		touch := touching(t, r)
		_, probeErr := touch.Probe(t.Context(), target, false)
		_, resetErr := touch.Prepare(t.Context(), target, device.Work{Method: "pci", Tenant: false})
		_, eraseErr := touch.Prepare(t.Context(), target, device.Work{Scrub: "zero", ByHand: true})
		for _, err := range []error{probeErr, resetErr, eraseErr} {
			if !errors.Is(err, want) || !strings.Contains(err.Error(), "it is so") {
				t.Errorf("%s: %v, want %v", result, err, want)
			}
		}
	}
}

func TestSocketWithoutServer(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "s")
	touch := helper.Touch(config.Reset{Socket: missing, Holders: missing}, "/sys", "")
	_, probeErr := touch.Probe(t.Context(), target, false)
	_, resetErr := touch.Prepare(t.Context(), target, device.Work{Method: "pci", Tenant: false})
	_, eraseErr := touch.Prepare(t.Context(), target, device.Work{Scrub: "zero", ByHand: true})
	_, holdersErr := touch.Holders(t.Context(), []string{"/dev/null"})
	for _, err := range []error{probeErr, resetErr, eraseErr, holdersErr} {
		if err == nil || !strings.Contains(err.Error(), "connect to "+missing) {
			t.Errorf("%v", err)
		}
	}
	if !errors.Is(probeErr, device.ErrUnanswered) {
		t.Errorf("%v: that says something of the disk", probeErr)
	}
}

func TestHelperCrash(t *testing.T) {
	touch := helper.Touch(config.Reset{Socket: serve(t, func([]byte) []byte { return nil })}, "/sys", "")
	if _, err := touch.Prepare(t.Context(), target, device.Work{Scrub: "format", Tenant: true}); err == nil || !strings.Contains(err.Error(), "without an answer") {
		t.Errorf("%v", err)
	}
}

// TestOneThingAtATime checks that only one request at a time is sent for a disk. A probe does not claim a disk that a
// pod holds, so it need not wait.
func TestOneThingAtATime(t *testing.T) {
	var mu sync.Mutex
	under := 0
	begun, over := make(chan struct{}), make(chan struct{})
	var first sync.Once
	r := &resetter{answers: []reset.Answer{{Result: reset.OK}}, during: func(r reset.Request) {
		if r.Do == reset.Look {
			return
		}
		mu.Lock()
		if under++; under > 1 {
			t.Error("two at a time")
		}
		mu.Unlock()
		first.Do(func() { close(begun); <-over })
		mu.Lock()
		under--
		mu.Unlock()
	}}
	touch := touching(t, r)
	errs := make(chan error)
	go func() {
		_, err := touch.Prepare(t.Context(), target, device.Work{Scrub: "zero", Tenant: true})
		errs <- err
	}()
	<-begun
	go func() {
		_, err := touch.Prepare(t.Context(), target, device.Work{Method: "nvme-controller", Tenant: true})
		errs <- err
	}()
	go func() { _, err := touch.Probe(t.Context(), target, false); errs <- err }()
	if _, err := touch.Probe(t.Context(), target, true); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := touch.Probe(ended, target, false); !errors.Is(err, device.ErrUnanswered) || errors.Is(err, device.ErrInUse) {
		t.Errorf("a probe whose time is up: %v", err)
	}
	if _, err := touch.Prepare(ended, target, device.Work{Method: "nvme-controller", Tenant: true}); !errors.Is(err, device.ErrInUse) {
		t.Errorf("a reset whose time is up: %v", err)
	}
	close(over)
	if err := errors.Join(<-errs, <-errs, <-errs); err != nil {
		t.Error(err)
	}
}

func TestHolding(t *testing.T) {
	const none = "{}"
	holder := func(pid int, comm, node, pod string) string {
		return fmt.Sprintf(`{"pid":%d,"comm":%q,"node":%q,"pod":%q}`, pid, comm, node, pod)
	}
	for _, c := range []struct {
		name, answer string
		nodes        []string
		asked        string
		want         []device.Holder
		err          string
	}{
		{"none", none, []string{"/dev/null"}, `{"nodes":["c 1:3"]}`, nil, ""},
		{
			"a pod and the host", `{"holders":[` + holder(7, "dd", "c 1:3", "pod-a") + "," + holder(8, "cat", "c 1:5", "") + "]}",
			[]string{"/dev/null", "/dev/zero"},
			`{"nodes":["c 1:3","c 1:5"]}`,
			[]device.Holder{
				{PID: 7, Command: "dd", PodUID: "pod-a"}, {PID: 8, Command: "cat"},
			},
			"",
		},
		{
			"a pod could not be read", `{"unread":[{"pod":"pod-a","count":2,"cause":"process 9"}]}`,
			[]string{"/dev/null"},
			`{"nodes":["c 1:3"]}`,
			[]device.Holder{{PodUID: "pod-a", Unread: "process 9"}},
			"",
		},
		{
			"the host could not be read", `{"unread":[{"any":true,"count":1,"cause":"process 9"}]}`,
			[]string{"/dev/null"},
			`{"nodes":["c 1:3"]}`,
			nil, cgroup.ErrIncomplete.Error(),
		},
		{"an error", `{"error":"no procfs"}`, []string{"/dev/null"}, `{"nodes":["c 1:3"]}`, nil, "no procfs"},
		{"nonsense", "yes", []string{"/dev/null"}, `{"nodes":["c 1:3"]}`, nil, "malformed"},
		{"a node that is gone", none, []string{"/dev/null", "/dev/gone"}, "", nil, "find /dev/gone: "},
		{"no node", none, []string{"/dev"}, "", nil, "find /dev: the file is not a device node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Value
			asked.Store("")
			socket := serve(t, func(request []byte) []byte { asked.Store(string(request)); return []byte(c.answer) })
			got, err := helper.Touch(config.Reset{Holders: socket}, "/sys", "").Holders(t.Context(), c.nodes)
			if !reflect.DeepEqual(got, c.want) || (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v, %v; want %+v, %q", got, err, c.want, c.err)
			}
			if request := asked.Load(); request != c.asked {
				t.Errorf("asked for %q, want %q", request, c.asked)
			}
		})
	}
}

// TestOwnHelperIsOmitted checks that one of our helpers that reads a disk is not reported as a holder.
func TestOwnHelperIsOmitted(t *testing.T) {
	null, err := filepath.EvalSymlinks("/sys/dev/char/1:3")
	if err != nil {
		t.Fatal(err)
	}
	reads, read := make(chan struct{}), make(chan struct{})
	r := &resetter{t: t, answers: []reset.Answer{{Result: reset.OK}}, during: func(reset.Request) { close(reads); <-read }}
	holders := serve(t, func([]byte) []byte { return []byte("{}") })
	touch := helper.Touch(config.Reset{Socket: serve(t, r.answer), Holders: holders}, "/sys", "")
	var probe sync.WaitGroup
	probe.Go(func() {
		if _, err := touch.Probe(t.Context(), device.Target{Class: "nvme", SysPath: null}, false); err != nil {
			t.Error(err)
		}
	})
	<-reads
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := touch.Holders(impatient, []string{"/dev/null"}); !errors.Is(err, device.ErrInUse) {
		t.Errorf("while we read it: %v", err)
	}
	close(read)
	if got, err := touch.Holders(t.Context(), []string{"/dev/null"}); len(got) > 0 || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	probe.Wait()
}
