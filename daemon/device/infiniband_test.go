// SPDX-License-Identifier: Apache-2.0

package device

import "testing"

func TestInfiniBand(t *testing.T) {
	const device = `infiniband-b8cef60300a12b3c "MT4129 MT_0000000838" numa0` + "\n"
	const nodes = `
			  /dev/infiniband/uverbs0 = /dev/infiniband/by-path/pci-0000:19:00.0-uverbs
			  /dev/infiniband/rdma_cm`
	testSights(t, []sight{
		{name: "mlx5", recording: "infiniband-mlx5", want: device + nodes[1:]},
		{name: "renamed", recording: "infiniband-mlx5", edits: []string{
			"infiniband/mlx5_0", "infiniband/ibp25s0", "A: ibdev=mlx5_0", "A: ibdev=ibp25s0",
		}, want: device + nodes[1:]},
		{name: "another number", recording: "infiniband-mlx5", edits: []string{"uverbs0", "uverbs7"}, want: device + `
			  /dev/infiniband/uverbs7 = /dev/infiniband/by-path/pci-0000:19:00.0-uverbs
			  /dev/infiniband/rdma_cm`[1:]},
		{name: "only a link that goes stale", recording: "infiniband-mlx5", edits: []string{"S: infiniband/by-path/pci-0000:19:00.0-uverbs\n", ""}, want: device + `
			  /dev/infiniband/uverbs0
			  /dev/infiniband/rdma_cm`[1:]},
		{name: "virtual function without a GUID", recording: "infiniband-mlx5", edits: []string{"b8ce:f603:00a1:2b3c", "0000:0000:0000:0000"}, want: `
			infiniband-0000:19:00.0 "MT4129 MT_0000000838" numa0` + nodes},
		{name: "neither GUID nor function", recording: "infiniband-mlx5", edits: []string{
			"b8ce:f603:00a1:2b3c", "0000:0000:0000:0000", "E: SUBSYSTEM=pci\n", "E: SUBSYSTEM=other\n",
		}, want: `
			(mlx5_0)
			  held back: not complete: its node GUID is 0, and it is below no PCI function`},
		{name: "no model", recording: "infiniband-mlx5", edits: []string{"A: board_id=MT_0000000838\\n\nA: hca_type=MT4129\\n\n", ""}, want: `
			infiniband-b8cef60300a12b3c numa0` + nodes},
		{name: "without rdma_cm", recording: "infiniband-mlx5", edits: []string{"N: infiniband/rdma_cm", "N: infiniband/other"}, want: device +
			"  held back: not complete: /dev/infiniband/rdma_cm is missing: load the module rdma_ucm"},
		{name: "without uverbs", recording: "infiniband-mlx5", edits: []string{"infiniband_verbs/uverbs0", "infiniband_other/uverbs0"}, want: device +
			"  held back: not complete: it has no uverbs device: load the module ib_uverbs"},
		{name: "without its node", recording: "infiniband-mlx5", edits: []string{"N: infiniband/uverbs0", "N: infiniband/other"}, want: device +
			"  held back: not complete: /dev/infiniband/uverbs0 is missing"},
		{name: "link down", recording: "infiniband-mlx5", edits: []string{"5: LinkUp", "2: Polling", "4: ACTIVE", "1: DOWN"}, want: device +
			"  sick: port 1: state 1: DOWN, phys_state 2: Polling" + nodes},
		{name: "waiting for the subnet manager", recording: "infiniband-mlx5", edits: []string{"4: ACTIVE", "2: INIT"}, want: device +
			"  sick: port 1: state 2: INIT, phys_state 5: LinkUp" + nodes},
		{name: "one port of two up", recording: "infiniband-mlx5", edits: []string{
			"A: ports/1/", "A: ports/2/",
			"A: hca_type", `A: ports/1/phys_state=3: Disabled\n` + "\n" + `A: ports/1/state=1: DOWN\n` + "\nA: hca_type",
		}, want: device + nodes[1:]},
		{name: "no port up", recording: "infiniband-mlx5", edits: []string{
			`A: ports/1/state=4: ACTIVE\n`, `A: ports/1/state=1: DOWN\n` + "\n" + `A: ports/2/phys_state=2: Polling\n` + "\n" + `A: ports/2/state=1: DOWN\n`,
		}, want: device +
			"  sick: port 1: state 1: DOWN, phys_state 5: LinkUp; port 2: state 1: DOWN, phys_state 2: Polling" + nodes},
		{name: "no port", recording: "infiniband-mlx5", edits: []string{"A: ports/1/phys_state=5: LinkUp\\n\nA: ports/1/state=4: ACTIVE\\n\n", ""}, want: device +
			"  sick: it has no port" + nodes},
		{name: "in software", recording: "infiniband-rxe", want: `
			infiniband-505400fffe123456
			  /dev/infiniband/uverbs1
			  /dev/infiniband/rdma_cm
			infiniband-505400fffe123457
			  sick: port 1: state 1: DOWN, phys_state 3: Disabled
			  /dev/infiniband/uverbs0
			  /dev/infiniband/rdma_cm`},
	})
}

func TestInfiniBandWokenBySiblings(t *testing.T) {
	_, devices := recorded(t, "infiniband-mlx5")
	want := map[string]bool{"infiniband_verbs": true, "misc": true}
	for _, d := range devices {
		if got := InfiniBand.WokenBy(d); got != want[d.Subsystem] {
			t.Errorf("WokenBy(%s) = %v", d.SysPath, got)
		}
	}
}
