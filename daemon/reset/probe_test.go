// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/binary"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// probeOf0 returns the request to probe disk0.
func probeOf0() Request {
	return Request{Do: Probe, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}}
}

// setIdentify makes a controller answer requests for Identify and for the SMART log.
func (m *machine) setIdentify(oacs uint16, fna, sanicap, dlfeat byte) {
	m.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
		switch {
		case c.opcode == opIdentify && c.cdw10 == cnsController:
			binary.LittleEndian.PutUint16(data[256:], oacs)
			data[524], data[328] = fna, sanicap
		case c.opcode == opIdentify && c.cdw10 == cnsNamespace:
			data[33] = dlfeat
		case c.opcode == opGetLogPage && c.cdw10 == 0x007f0002: // 128 dwords of log page 2
			copy(data, "\x04\x37\x01\x5a\x0a\x65")
			data[160] = 7
		}
		return 0, nil
	}
}

// TestEachProbeReadsOtherPlaces checks that two probes read different random blocks. Otherwise a pod could learn these
// blocks, and hide data from the next probe.
func TestEachProbeReadsOtherPlaces(t *testing.T) {
	m, n := oneNVMe(t)
	n.fill()
	if first, second := printOf0(m), printOf0(m); first == "" || seedIn(first) == seedIn(second) {
		t.Errorf("two probes read the same places: %s, %s", first, second)
	}
}

// TestProbeWaitsForAClaim checks that a probe waits for another process that claims the disk for a moment, but not for
// longer.
func TestProbeWaitsForAClaim(t *testing.T) {
	const claimed = "/dev/nvme0n1 cannot be opened exclusively: it is mounted, part of another device, or open elsewhere"
	for _, c := range []struct {
		name   string
		claims time.Duration
		after  func(m *machine)
		want   Answer // only the fields that concern a claim
		took   time.Duration
	}{
		{"for a moment", 90 * time.Millisecond, nil, Answer{Result: OK}, 100 * time.Millisecond},
		{"for a moment, and writes to it", 90 * time.Millisecond, func(m *machine) {
			m.nodes["/dev/nvme0n1"].ext4()
		}, Answer{Result: OK, Report: device.Report{Content: "unknown data at byte 0"}}, 100 * time.Millisecond},
		{"for longer", time.Hour, nil, Answer{Result: Busy, Detail: claimed}, exclusiveOpenLimit},
		{"until it is mounted", 90 * time.Millisecond, func(m *machine) {
			m.files(map[string]string{"/proc/1/mountinfo": "30 22 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n"})
		}, Answer{Result: Busy, Detail: "nvme0n1 is mounted on /data"}, 100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, n := oneNVMe(t)
				began := time.Now()
				n.claimed = func() bool {
					claims := time.Since(began) < c.claims
					if !claims && c.after != nil {
						c.after(m)
					}
					return claims
				}
				got := m.ask(probeOf0())
				if got := (Answer{Result: got.Result, Detail: got.Detail, Report: device.Report{Content: got.Content}}); !reflect.DeepEqual(got, c.want) || time.Since(began) != c.took {
					t.Errorf("after %v the answer is %+v\nwant %+v after %v", time.Since(began), got, c.want, c.took)
				}
			})
		})
	}
}

// TestProbeIdentifiesTheControllerOnce counts the commands of each inspection.
func TestProbeIdentifiesTheControllerOnce(t *testing.T) {
	m, _ := oneNVMe(t)
	m.setIdentify(1<<1, 1<<2, sanitizeBlock, 0)
	answer, asked := m.onAdmin, 0
	m.onAdmin = func(c adminCommand, data []byte) (uint16, error) {
		if c.opcode == opIdentify && c.cdw10 == cnsController {
			asked++
		}
		return answer(c, data)
	}
	if got := m.ask(probeOf0()); got.Result != OK || asked != 1 {
		t.Errorf("it was asked %d times: %+v", asked, got)
	}
}

// checkUntouched checks that the helper has done nothing, and has not opened a node for writing.
func (m *machine) checkUntouched() {
	m.Helper()
	for _, call := range m.calls {
		m.Errorf("it did: %s", call)
	}
}
