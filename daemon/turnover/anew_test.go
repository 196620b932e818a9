// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/turnover"
)

// TestDiskComesAnew: after a reset of the NVM subsystem the disk has another diskseq, and what the pod has left on it is
// erased all the same. One that has taken its place is left alone.
func TestDiskComesAnew(t *testing.T) {
	for _, c := range []struct {
		name   string
		care   turnover.Care
		wwid   string // of the disk that comes
		erased bool
	}{
		{"before a start", turnover.Care{Method: "nvme-subsystem", Scrub: "zero", AtStart: true}, "eui.11", true},
		{"after a release", turnover.Care{Method: "nvme-subsystem", Scrub: "zero", AtRelease: true, Timeout: time.Hour}, "eui.11", true},
		{"another before a start", turnover.Care{Method: "nvme-subsystem", Scrub: "zero", AtStart: true}, "eui.99", false},
		{"another after a release", turnover.Care{Method: "nvme-subsystem", Scrub: "zero", AtRelease: true, Timeout: time.Hour}, "eui.99", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			play(t, disk(1, 1, 7), c.care, func(b *bench) {
				b.used("A", "nvme1n1")
				synctest.Wait()
				b.did()
				b.meanwhile("reset", func(context.Context) error {
					b.machine.Unplug("/sys/devices/pci0000:00/0000:00:01.0")
					b.machine.Apply(mounts + strings.Replace(disk(1, 1, 8), "wwid=eui.11", "wwid="+c.wwid, 1))
					return nil
				})
				b.free("nvme1n1")
				synctest.Wait()
				if c.care.AtStart {
					if err := b.allocate("B", "nvme1n1"); err != nil {
						t.Fatal(err)
					}
					if err := b.start("nvme1n1"); (err == nil) != c.erased {
						t.Errorf("started: %v", err)
					}
				}
				synctest.Wait()
				did := b.did()
				if !strings.HasPrefix(did, "reset nvme1n1 nvme-subsystem") || strings.Contains(did, "erase") != c.erased {
					t.Errorf("the helpers were asked for %q", did)
				}
				if content := b.content["nvme1n1"]; (content == "") != c.erased {
					t.Errorf("on it is %q", content)
				}
			})
		})
	}
}
