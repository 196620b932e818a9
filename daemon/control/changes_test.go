// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
	"github.com/metalplug/metalplug/integration/clock"
)

// offered returns a healthy device in an offer, with changes.
func offered(changes ...func(*inventory.Status)) *inventory.Status {
	s := &inventory.Status{
		Device:   &device.Device{ID: "d", Class: &device.NVMe, SysPath: "/sys/devices/d", NUMANode: 1},
		Resource: "t/r", Verdict: verdict.Verdict{Healthy: true}, Observation: inventory.Observation{Present: true},
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
	s.Healthy, s.Cordon, s.Reason = false, &api.Cordon{Reason: "x", User: "ann"}, "cordoned: x"
}

func cordonedBy(user string) func(*inventory.Status) {
	return func(s *inventory.Status) {
		s.Healthy, s.Cordon, s.Reason = false, &api.Cordon{Reason: "y", User: user}, "cordoned: y"
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
		{"plugged in, in use", nil, offered(seen), "seen"},
		{"no change", offered(), offered(), ""},
		{"mounted", offered(), offered(seen), "withdrawn"},
		{"unmounted", offered(seen), offered(), "added healthy"},
		{"pulled", offered(), offered(gone), "gone"},
		{"put in again", offered(gone), offered(), "back healthy"},
		{"put in again, sick", offered(gone), offered(sick("x")), "back"},
		{"broken", offered(), offered(sick("x")), "unhealthy"},
		{"recovered", offered(sick("x")), offered(), "healthy"},
		{"allocated", offered(), offered(held), "allocated"},
		{"released", offered(held), offered(), "released"},
		{"pulled and released", offered(held), offered(gone), "gone released"},
		{"cordoned", offered(), offered(cordoned), "cordoned"},
		{"cordoned as before", offered(cordoned), offered(cordoned), ""},
		{"cordoned for another reason", offered(cordoned), offered(cordonedBy("bob")), "cordoned"},
		{"cordoned, and worse", offered(cordoned), offered(cordoned, func(s *inventory.Status) { s.Reason += "; sick" }), "unhealthy"},
		{"uncordoned", offered(cordoned), offered(), "uncordoned"},
		{"a warning", offered(), offered(warned), "warning"},
		{"changed", offered(), offered(func(s *inventory.Status) {
			s.Device = &device.Device{Class: &device.NVMe, SysPath: "/sys/devices/d", Model: "new"}
		}), "changed"},
		{"a warning is over", offered(warned), offered(), "warning"},
		{"another reason while only seen", offered(seen), offered(seen, func(s *inventory.Status) { s.Reason = "mounted" }), ""},
	} {
		if got := strings.Join(eventNames(test.old, test.now), " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestTurnIsLimited checks that a client which does not read its answer, or hardware that does not answer, delays the same
// user's next client only briefly. The clients of the other users are not delayed.
func TestTurnIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, ended := make(chan struct{}), make(chan struct{})
		handler := inTurn(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stuck" {
				<-stuck
			}
		})
		get := func(path, uid string) (code int, took time.Duration) {
			began, answer := time.Now(), httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
			r.RemoteAddr = uid
			handler(answer, r)
			return answer.Code, time.Since(began)
		}
		go func() { get("/stuck", "65534"); close(ended) }()
		synctest.Wait()
		if code, took := get("/", "65534"); code != 503 || took != turnTimeout {
			t.Errorf("%d after %v", code, took)
		}
		if code, took := get("/", "0"); code != 200 || took != 0 {
			t.Errorf("root: %d after %v", code, took)
		}
		close(stuck)
		<-ended
		if code, _ := get("/", "65534"); code != 200 {
			t.Errorf("after the end of the first request: %d", code)
		}
	})
}

// TestKubeletIsAskedOnceASecond checks that metalplugd queries the kubelet at most once a second, even if a client sends
// requests without a pause.
func TestKubeletIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recent
		asked := 0
		for range 1000 {
			_, err := r.get(func() (map[string][]string, error) { asked++; return nil, io.EOF })
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			clock.Pass(10 * time.Millisecond)
		}
		if asked != 10 {
			t.Errorf("asked %d times in 10 s", asked)
		}
	})
}
