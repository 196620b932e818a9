// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// TestHoldersAreNotedOnce checks that a new holder is recorded once, with the name of its pod. Devices of other
// resources are not recorded.
func TestHoldersAreNotedOnce(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{audit: audit.Open(dir, slog.New(slog.DiscardHandler))}
	s := &inventory.Status{
		Device: &device.Device{ID: "nvme-1"}, Resource: "example.org/disk",
		Observation: inventory.Observation{Target: &device.Target{Identity: map[string]string{"device/serial": "S1"}}},
	}
	snapshot := &inventory.Snapshot{Offers: map[string]*inventory.Offer{"example.org/disk": {Devices: []*inventory.Status{s}}}}
	a, b := api.Pod{Namespace: "n", Name: "a", Container: "c"}, api.Pod{Namespace: "n", Name: "b", Container: "c"}
	d.noteAllocated([]*inventory.Status{s})
	var before map[string][]api.Pod
	for _, pods := range [][]api.Pod{{a}, {a}, {a, b}, {}, {a}} {
		by := map[string][]api.Pod{"nvme-1": pods, "of another plugin": {a}}
		d.noteHolders(snapshot, before, by)
		before = by
	}
	d.audit.Close()
	text, err := os.ReadFile(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var got []audit.Entry
	for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var e audit.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		e.Time = time.Time{}
		got = append(got, e)
	}
	entry := audit.Entry{Event: audit.Allocated, Resource: "example.org/disk", Device: "nvme-1", Identity: map[string]string{"device/serial": "S1"}}
	held := func(pod string) audit.Entry {
		e := entry
		e.Event, e.Namespace, e.Pod, e.Container = audit.Held, "n", pod, "c"
		return e
	}
	if want := []audit.Entry{entry, held("a"), held("b"), held("a")}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
