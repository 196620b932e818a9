// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/integration/clock"
)

// audited returns the entries of the audit since the start, without what every one of a disk has. The audit is closed.
func (b *bench) audited() []audit.Entry {
	b.t.Helper()
	b.closeAudit()
	f, err := os.Open(filepath.Join(b.state, "audit.jsonl"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	var all []audit.Entry
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e audit.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			b.t.Fatal(err)
		}
		want := map[string]string{"wwid": "eui.11", "diskseq": "7"}
		if e.Time.IsZero() || e.Device != idOf("nvme1n1") || e.Resource != diskResource || !reflect.DeepEqual(e.Identity, want) {
			b.t.Errorf("%+v", e)
		}
		e.Time, e.Device, e.Resource, e.Identity = time.Time{}, "", "", nil
		all = append(all, e)
	}
	return all
}

// TestAudit: who had a disk, what has erased it, how that was verified, and what went wrong.
func TestAudit(t *testing.T) {
	play(t, disk(1, 1, 7), with(always, startUnit, ""), func(b *bench) {
		b.stop()
		b.auditing = true
		b.begin()
		b.ok(b.allocate("A", "nvme1n1"))
		b.fails(startUnit, errUnit)
		b.refused(b.start("nvme1n1"), errUnit.Error())
		b.fails(startUnit, nil)
		b.ok(b.start("nvme1n1"))
		b.fails("erase", errors.New("media error"))
		b.free("nvme1n1")
		b.status("nvme1n1")
		b.fails("erase", nil)
		clock.Pass(10 * time.Second)
		b.status("nvme1n1")
		b.did()
		b.want("nvme1n1", "", "")
		reset := audit.Entry{Event: audit.Reset, Method: "nvme-controller", Result: "ok", Verified: "reset"}
		erased := audit.Entry{Event: audit.Erased, Method: "zero", Result: "ok", Verified: "erased"}
		resetToo := audit.Entry{Event: audit.Reset, Method: "nvme-controller", Result: "ok", Verified: "erased"}
		of := func(e audit.Entry) audit.Entry { e.Pods = []string{"A"}; return e }
		want := []audit.Entry{
			reset,
			{Event: audit.Failed, Method: startUnit, Result: errUnit.Error()},
			{Event: audit.Refused, Pods: []string{"A"}, Result: "nvme-eui.11: " + errUnit.Error()},
			reset,
			{Event: audit.Stepped, Method: startUnit, Result: "ok"},
			{Event: audit.Started, Pods: []string{"A"}, Result: "ok"},
			of(audit.Entry{Event: audit.Released, Result: "ok"}),
			of(audit.Entry{Event: audit.Failed, Method: "nvme-controller, zero", Result: "media error"}),
			of(resetToo), of(erased),
		}
		if got := b.audited(); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nwant\n%+v", got, want)
		}
	})
}
