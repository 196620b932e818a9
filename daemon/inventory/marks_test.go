// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

// every has rules that offer all hardware and virtual nodes.
var every = []device.Rule{
	{Resource: "test/gpu", Class: &device.GPU},
	{Resource: "test/fpga", Class: &device.FPGA},
	{Resource: "test/infiniband", Class: &device.InfiniBand},
	{Resource: "test/nvme", Class: &device.NVMe},
	{Resource: "test/vfio", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "vfio"}},
	{Resource: "test/widget", Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "widget"}},
}

func everything(o *inventory.Options) { o.Rules = every }

func testdata(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../device/testdata/" + name + ".umockdev")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// send sends an event of the form "ACTION SUBSYSTEM SYSPATH [KEY=VALUE[;KEY=VALUE]…]". It adds the properties of the device.
func (r *running) send(text string) {
	r.t.Helper()
	devices, err := r.machine.Enumerate()
	if err != nil {
		r.t.Fatal(err)
	}
	fields := strings.SplitN(text, " ", 4)
	d := udev.Device{Subsystem: fields[1], SysPath: "/sys/devices/" + fields[2]}
	known := slices.IndexFunc(devices, func(k udev.Device) bool { return k.SysPath == d.SysPath })
	if known >= 0 && fields[0] != udev.Logged {
		d = devices[known]
	}
	if len(fields) > 3 {
		for property := range strings.SplitSeq(fields[3], ";") {
			key, value, _ := strings.Cut(property, "=")
			d.Properties = d.Properties.With(key, value)
		}
	}
	r.machine.Send(udev.Event{Action: fields[0], Device: d})
}

// states lists the offered devices as "ID", "ID sick: REASON" or "ID but: WARNING".
func states(s *inventory.Snapshot) string {
	var all []string
	for _, o := range s.Offers {
		for _, d := range o.Devices {
			state := d.Device.ID
			if !d.Healthy {
				state += " sick: " + d.Reason
			}
			if d.Warning != "" {
				state += " but: " + d.Warning
			}
			all = append(all, state)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// Each case changes the health of a device by events and attributes, and checks when the device is Unhealthy and when it is
// Healthy again.
func TestHealth(t *testing.T) {
	const gpu, gpuID = "pci0000:15/0000:15:01.0/0000:18:00.0", "GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a"
	const amd, amdID = "pci0000:00/0000:00:01.1/0000:05:00.0", "gpu-4b1a2c3d5e6f7081"
	const disk, diskID = "pci0000:64/0000:64:02.0/0000:65:00.0", "nvme-eui.36344830545001230025384300000001"
	const port, portID = "pci0000:3a/0000:3a:00.0/0000:3b:00.0", "fpga-0000:3b:00.0-port0"
	const hca, hcaID = "pci0000:15/0000:15:01.0/0000:19:00.0", "infiniband-b8cef60300a12b3c"
	const xid, action = "logged pci " + gpu + " MESSAGE=NVRM: Xid (PCI:0000:18:00): ", "154, GPU recovery action changed from 0x0 (None) to 0x"
	const failed = " sick: the kernel could not recover the device from a PCIe error: bind the driver again, or replace the device"
	const beginning = " sick: the kernel is recovering the device from a PCIe error"
	const fell = " sick: Xid 79: GPU has fallen off the bus"
	fatal := func(n int) string {
		return fmt.Sprintf("set %s aer_dev_fatal TLP %d\\nTOTAL_ERR_FATAL %d\\n", gpu, n, n)
	}
	for _, test := range []struct {
		name, recording string
		steps           []string // an event, the devices that are offered after it, and so on
	}{
		{"Xid", "gpu-nvidia", []string{
			xid + "31, pid=1, name=a, Ch 8", gpuID,
			xid + "79, GPU has fallen off the bus.", gpuID + fell,
			xid + "31, pid=1, name=a, Ch 8", gpuID + fell,
			"add pci " + gpu + " SYNTH_UUID=0", gpuID + fell,
			"change pci " + gpu, gpuID + fell,
			"bind pci " + gpu, gpuID,
		}},
		{"Xid, and the driver's verdict", "gpu-nvidia", []string{
			xid + "48, DBE", gpuID + " sick: Xid 48: DBE",
			xid + action + "1 (GPU Reset Required)", gpuID + " sick: Xid 154: its driver requires: GPU Reset Required; Xid 48: DBE",
			xid + "32, Channel", gpuID + " sick: Xid 154: its driver requires: GPU Reset Required; Xid 48: DBE but: Xid 32: Channel",
			xid + action + "0 (None)", gpuID,
		}},
		{"Xid that nobody knows", "gpu-nvidia", []string{
			xid + "999, new", gpuID + " but: Xid 999: new",
			"remove pci " + gpu, gpuID,
		}},
		{"replaced", "gpu-nvidia", []string{xid + "79, GPU has fallen off the bus.", gpuID + fell, "remove pci pci0000:15/0000:15:01.0", gpuID}},
		{"reset by somebody", "gpu-nvidia", []string{
			xid + "79, GPU has fallen off the bus.", gpuID + fell,
			"change pci pci0000:15/0000:15:01.0 ERROR_EVENT=FAILED_RECOVERY", gpuID + fell + "; " + failed[7:],
			"recovered " + gpuID, gpuID,
		}},
		{"recovery", "gpu-nvidia", []string{
			"change pci " + gpu + " ERROR_EVENT=BEGIN_RECOVERY", gpuID + beginning,
			"change pci " + gpu + " ERROR_EVENT=SUCCESSFUL_RECOVERY", gpuID,
		}},
		{"recovery that fails, as the bridge says", "gpu-nvidia", []string{
			"change pci pci0000:15/0000:15:01.0 ERROR_EVENT=FAILED_RECOVERY", gpuID + failed,
			"add drm " + gpu + "/drm/card0", gpuID + failed,
			"bind pci " + gpu, gpuID,
			"change pci pci0000:15/0000:15:01.0 ERROR_EVENT=FAILED_RECOVERY", gpuID + failed,
			"change pci " + gpu + " ERROR_EVENT=SUCCESSFUL_RECOVERY", gpuID,
		}},
		{"recovery of something else", "gpu-nvidia", []string{"change pci pci0000:15/0000:15:02.0 ERROR_EVENT=FAILED_RECOVERY", gpuID}},
		{"recovery of a disk's controller", "nvme", []string{
			"change pci " + disk + " ERROR_EVENT=FAILED_RECOVERY", diskID + failed,
			"add block " + disk + "/nvme/nvme2/nvme2n1", diskID + failed,
			"bind pci " + disk, diskID,
		}},
		{"recovery of one of two paths to a disk", "nvme-multipath", []string{
			"change pci pci0000:00/0000:00:06.0/0000:03:00.0 ERROR_EVENT=FAILED_RECOVERY", "nvme-uuid.01234567-89ab-cdef-0123-456789abcdef",
			"change pci pci0000:00/0000:00:05.0/0000:02:00.0 ERROR_EVENT=FAILED_RECOVERY", "nvme-uuid.01234567-89ab-cdef-0123-456789abcdef" + failed,
		}},
		{"counters", "gpu-nvidia", []string{
			fatal(1), gpuID + " sick: 1 or more fatal PCIe errors (aer_dev_fatal)",
			fatal(2), gpuID + " sick: 1 or more fatal PCIe errors (aer_dev_fatal)",
			fatal(11), gpuID + " sick: 10 or more fatal PCIe errors (aer_dev_fatal)",
			"bind pci " + gpu, gpuID,
			fatal(12), gpuID + " sick: 1 or more fatal PCIe errors (aer_dev_fatal)",
			fatal(0), gpuID, // the other card, which no event concerned
			"set " + gpu + " aer_dev_nonfatal TOTAL_ERR_NONFATAL 4\\n", gpuID + " but: 1 or more nonfatal PCIe errors (aer_dev_nonfatal)",
		}},
		{"link", "gpu-nvidia", []string{
			"set " + gpu + " current_link_width 8\\n", gpuID + " but: the PCIe link of 0000:18:00.0 has 8 of 16 lanes",
			"set " + gpu + " current_link_width 16\\n", gpuID,
		}},
		{"off the bus", "gpu-amd", []string{
			"set " + amd + " config \xff\xff", amdID + " sick: the PCI configuration space does not answer: the device has fallen off the bus",
			"set " + amd + " config \x02\x10", amdID,
		}},
		{"wedged", "gpu-amd", []string{
			"change drm " + amd + "/drm/card1 WEDGED=rebind,bus-reset", amdID + " sick: the driver has declared the GPU unusable (WEDGED=rebind,bus-reset)",
			"change drm " + amd + "/drm/card1 WEDGED=none", amdID,
			"change drm " + amd + "/drm/card1 WEDGED=unknown", amdID + " sick: the driver has declared the GPU unusable (WEDGED=unknown)",
			"bind pci " + amd, amdID,
		}},
		{"i915", "gpu-intel", []string{
			"change drm pci0000:00/0000:00:02.0/drm/card0 ERROR=1", "gpu-0000:00:02.0 sick: driver i915 has found an error and is resetting the GPU",
			"change drm pci0000:00/0000:00:02.0/drm/card0 RESET=1", "gpu-0000:00:02.0 sick: driver i915 has found an error and is resetting the GPU",
			"change drm pci0000:00/0000:00:02.0/drm/card0 ERROR=0", "gpu-0000:00:02.0",
		}},
		{"controller", "nvme", []string{
			"set " + disk + "/nvme/nvme2 state resetting", diskID + " sick: controller nvme2 is resetting",
			"set " + disk + "/nvme/nvme2 state live", diskID,
		}},
		{"port", "infiniband-mlx5", []string{
			"set " + hca + "/infiniband/mlx5_0 ports/1/state 1: DOWN\\n", hcaID + " sick: port 1: state 1: DOWN, phys_state 5: LinkUp",
			"set " + hca + "/infiniband/mlx5_0 ports/1/state 4: ACTIVE\\n", hcaID,
			"change pci " + hca + " ERROR_EVENT=BEGIN_RECOVERY", hcaID + beginning,
		}},
		{"accelerator", "fpga-dfl", []string{
			"set " + port + "/fpga_region/region0/dfl-port.0 errors/errors 0x4\\n", portID + " sick: port error: errors/errors is 0x4",
			"set " + port + "/fpga_region/region0/dfl-port.0 errors/errors 0x0\\n", portID,
			"change pci " + port + " ERROR_EVENT=FAILED_RECOVERY", portID + failed,
			"bind platform " + port + "/fpga_region/region0/dfl-port.0", portID + failed,
		}},
		{"a function in a VFIO group", "node-virtual", []string{
			"change pci pci0000:40/0000:40:01.0/0000:41:00.0 ERROR_EVENT=FAILED_RECOVERY", "node-vfio-0000:41:00.0" + failed,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := udevtest.New(t, testdata(t, test.recording))
				r := start(t, m, "", everything)
				for step := range slices.Chunk(test.steps, 2) {
					r.runStep(step[0])
					r.waitSnapshot(step[0]+" leads to "+step[1], func(s *inventory.Snapshot) bool { return states(s) == step[1] })
				}
			})
		})
	}
}

// runStep carries out a step, which is an event, "set SYSPATH ATTRIBUTE VALUE" or "recovered ID". In a synctest bubble, it
// returns when the inventory has processed the step.
func (r *running) runStep(step string) {
	r.t.Helper()
	fields := strings.SplitN(step, " ", 4)
	switch fields[0] {
	case "set":
		r.machine.SetAttr("/sys/devices/"+fields[1], fields[2], strings.ReplaceAll(fields[3], `\n`, "\n"))
	case "recovered":
		r.Recovered(fields[1])
	default:
		r.send(step)
	}
	synctest.Wait()
}

// For each PCI function of each recording, the test makes the function faulty, and checks that no device on it is Healthy.
func TestNoPartOfSickHardwareIsHealthy(t *testing.T) {
	names, err := filepath.Glob("../device/testdata/*.umockdev")
	if err != nil || len(names) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	checked := 0
	for _, name := range names {
		m := udevtest.New(t, testdata(t, strings.TrimSuffix(filepath.Base(name), ".umockdev")))
		r := start(t, m, "", everything)
		devices, err := m.Enumerate()
		if err != nil {
			t.Fatal(err)
		}
		s, _ := r.Snapshot()
		before := states(s)
		for _, d := range devices {
			if d.Subsystem != "pci" {
				continue
			}
			below := strings.TrimPrefix(d.SysPath, "/sys/devices/")
			r.send("change pci " + below + " ERROR_EVENT=FAILED_RECOVERY")
			r.send("change pci " + below)
			r.waitSnapshot("all of "+d.SysPath+" is sick", func(s *inventory.Snapshot) bool { return healthyIn(s, d.SysPath) == 0 })
			r.send("bind pci " + below)
			r.waitSnapshot("all is as before", func(s *inventory.Snapshot) bool { return states(s) == before })
			checked++
		}
		r.end()
	}
	if checked < 10 {
		t.Errorf("only %d PCI functions", checked)
	}
}

// healthyIn returns the number of healthy devices whose hardware is entirely at or below a sysfs path.
func healthyIn(s *inventory.Snapshot, sysPath string) (n int) {
	for _, o := range s.Offers {
		for _, d := range o.Devices {
			if d.Healthy && strings.HasPrefix(d.Device.SysPath, sysPath+"/") || d.Device.SysPath == sysPath && d.Healthy {
				n++
			}
		}
	}
	return n
}

// A device that is found later on faulty hardware must be Unhealthy too.
func TestLaterPartIsUnhealthy(t *testing.T) {
	const disk = "P: /devices/pci0000:64/0000:64:02.0/0000:65:00.0/nvme/nvme2/nvme2n1"
	text := testdata(t, "nvme")
	begin := strings.Index(text, disk)
	end := begin + strings.Index(text[begin:], "\n\n")
	m := udevtest.New(t, text[:begin]+text[end:])
	r := start(t, m, "", everything)
	r.send("change pci pci0000:64/0000:64:02.0/0000:65:00.0 ERROR_EVENT=BEGIN_RECOVERY")
	m.Plug(text[begin : end+1])
	r.waitOffer("test/nvme", "nvme-eui.36344830545001230025384300000001 Unhealthy (the kernel is recovering the device from a PCIe error)")
}

func TestMarksSurviveARestartButNoBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gpu, id = "pci0000:15/0000:15:01.0/0000:18:00.0", "GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a"
		const boot = "F: /proc/sys/kernel/random/boot_id="
		const xid = id + " sick: Xid 79: GPU has fallen off the bus"
		text := testdata(t, "gpu-nvidia")
		state := t.TempDir()
		again := func(boot, text, want string) *running {
			t.Helper()
			r := start(t, udevtest.New(t, text+boot+"\n"), state, everything)
			r.waitSnapshot(want, func(s *inventory.Snapshot) bool { return states(s) == want })
			return r
		}

		r := again(boot+"one", text, id)
		r.send("logged pci " + gpu + " MESSAGE=NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")
		r.waitSnapshot(xid, func(s *inventory.Snapshot) bool { return states(s) == xid })
		r.end()
		r = again(boot+"one", text, xid)
		r.send("bind pci " + gpu)
		r.waitSnapshot(id, func(s *inventory.Snapshot) bool { return states(s) == id })
		synctest.Wait() // the next inspection sets the base value of the error counters
		r.end()
		// The next daemon must notice an error that occurred while no daemon ran.
		worse := strings.Replace(text, "TOTAL_ERR_FATAL 0", "TOTAL_ERR_FATAL 2", 1)
		again(boot+"one", worse, id+" sick: 1 or more fatal PCIe errors (aer_dev_fatal)").end()
		again(boot+"two", worse, id).end()
		// Without its ID, a boot is not known to be the same one.
		again(boot, text, id).end()
		again(boot, worse, id).end()
	})
}

// Each change of health must cause exactly one log line.
func TestHealthIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gpu, id = "pci0000:15/0000:15:01.0/0000:18:00.0", "GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a"
		var out strings.Builder // read only while no goroutine of the inventory runs
		m := udevtest.New(t, testdata(t, "gpu-nvidia"))
		r := start(t, m, "", everything, func(o *inventory.Options) { o.Log = slog.New(slog.NewTextHandler(&out, nil)) })
		steps := []string{
			"set " + gpu + " current_link_width 4\\n", "set " + gpu + " numa_node 0\\n",
			"logged pci " + gpu + " MESSAGE=NVRM: Xid (PCI:0000:18:00): 48, DBE", "logged pci " + gpu + " MESSAGE=NVRM: Xid (PCI:0000:18:00): 48, DBE",
			"set " + gpu + " current_link_width 16\\n", "bind pci " + gpu,
		}
		for _, step := range steps {
			r.runStep(step)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			if _, line, ok := strings.Cut(line, " level="); ok && strings.Contains(line, id) {
				got = append(got, strings.TrimSpace(strings.ReplaceAll(line, " device="+id+" class=gpu resource=test/gpu", "")))
			}
		}
		want := []string{
			"INFO msg=\"device added\" syspath=/sys/devices/" + gpu,
			`WARN msg="device warning" reason="the PCIe link of 0000:18:00.0 has 4 of 16 lanes"`,
			`INFO+2 msg="device unhealthy" reason="Xid 48: DBE"`,
			`INFO msg="device warning over" reason="the PCIe link of 0000:18:00.0 has 4 of 16 lanes"`,
			`INFO+2 msg="device healthy"`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("logged\n%s\n\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A device that fails repeatedly must stay Unhealthy until it has been healthy for some time.
func TestFlappingIsDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// This class is inspected only after an event.
		const gpu, id = "pci0000:40/0000:40:01.0/0000:41:00.0", "node-vfio-0000:41:00.0"
		r := start(t, udevtest.New(t, testdata(t, "node-virtual")), "", everything)
		now := func(want string) {
			t.Helper()
			synctest.Wait()
			if s, _ := r.Snapshot(); states(s) != want {
				t.Errorf("at %v: %s, want %s", time.Now(), states(s), want)
			}
		}
		const sick = id + " sick: the kernel is recovering the device from a PCIe error"
		const kept = id + " sick: the device fails too often (last: the kernel is recovering the device from a PCIe error) and must first stay healthy for 5m0s"
		for i := range 6 {
			r.send("change pci " + gpu + " ERROR_EVENT=BEGIN_RECOVERY")
			now(sick)
			clock.Pass(time.Minute)
			r.send("change pci " + gpu + " ERROR_EVENT=SUCCESSFUL_RECOVERY")
			if i < 3 {
				now(id)
			} else {
				now(kept)
			}
			clock.Pass(10 * time.Second)
		}
		clock.Pass(4 * time.Minute)
		now(kept)
		clock.Pass(time.Minute)
		now(id)
	})
}
