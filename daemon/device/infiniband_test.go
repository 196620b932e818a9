// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestInfiniBand(t *testing.T) {
	const itself = `infiniband-b8cef60300a12b3c "MT4129 MT_0000000838" numa0` + "\n"
	const nodes = `
			  /dev/infiniband/uverbs0 = /dev/infiniband/by-path/pci-0000:19:00.0-uverbs
			  /dev/infiniband/rdma_cm`
	testSights(t, []sight{
		{name: "mlx5", recording: "infiniband-mlx5", want: itself + nodes[1:]},
		{name: "renamed", recording: "infiniband-mlx5", edits: []string{
			"infiniband/mlx5_0", "infiniband/ibp25s0", "A: ibdev=mlx5_0", "A: ibdev=ibp25s0",
		}, want: itself + nodes[1:]},
		{name: "another number", recording: "infiniband-mlx5", edits: []string{"uverbs0", "uverbs7"}, want: itself + `
			  /dev/infiniband/uverbs7 = /dev/infiniband/by-path/pci-0000:19:00.0-uverbs
			  /dev/infiniband/rdma_cm`[1:]},
		{name: "only a link that goes stale", recording: "infiniband-mlx5", edits: []string{"S: infiniband/by-path/pci-0000:19:00.0-uverbs\n", ""}, want: itself + `
			  /dev/infiniband/uverbs0
			  /dev/infiniband/rdma_cm`[1:]},
		{name: "virtual function without a GUID", recording: "infiniband-mlx5", edits: []string{"b8ce:f603:00a1:2b3c", "0000:0000:0000:0000"}, want: `
			infiniband-0000:19:00.0 "MT4129 MT_0000000838" numa0` + nodes},
		{name: "neither GUID nor function", recording: "infiniband-mlx5", edits: []string{
			"b8ce:f603:00a1:2b3c", "0000:0000:0000:0000", "/0000:15:01.0/0000:19:00.0", "/a/b",
		}, want: `
			(mlx5_0)
			  held back: not complete: the node GUID is 0, and the adapter has no PCI parent`},
		{name: "no model", recording: "infiniband-mlx5", edits: []string{"A: board_id=MT_0000000838\\n\nA: hca_type=MT4129\\n\n", ""}, want: `
			infiniband-b8cef60300a12b3c numa0` + nodes},
		{name: "without rdma_cm", recording: "infiniband-mlx5", edits: []string{"N: infiniband/rdma_cm", "N: infiniband/other"}, want: itself +
			"  held back: not complete: /dev/infiniband/rdma_cm is missing: load the rdma_ucm module"},
		{name: "without uverbs", recording: "infiniband-mlx5", edits: []string{"infiniband_verbs/uverbs0", "infiniband_other/uverbs0"}, want: itself +
			"  held back: not complete: the adapter has no uverbs device: load the ib_uverbs module"},
		{name: "without its node", recording: "infiniband-mlx5", edits: []string{"N: infiniband/uverbs0", "N: infiniband/other"}, want: itself +
			"  held back: not complete: /dev/infiniband/uverbs0 is missing"},
		{name: "link down", recording: "infiniband-mlx5", edits: []string{"5: LinkUp", "2: Polling", "4: ACTIVE", "1: DOWN"}, want: itself +
			"  sick: port 1: state 1: DOWN, phys_state 2: Polling" + nodes},
		{name: "waiting for the subnet manager", recording: "infiniband-mlx5", edits: []string{"4: ACTIVE", "2: INIT"}, want: itself +
			"  sick: port 1: state 2: INIT, phys_state 5: LinkUp" + nodes},
		{name: "one port of two up", recording: "infiniband-mlx5", edits: []string{
			"A: ports/1/", "A: ports/2/",
			"A: hca_type", `A: ports/1/phys_state=3: Disabled\n` + "\n" + `A: ports/1/state=1: DOWN\n` + "\nA: hca_type",
		}, want: itself + nodes[1:]},
		{name: "no port up", recording: "infiniband-mlx5", edits: []string{
			`A: ports/1/state=4: ACTIVE\n`, `A: ports/1/state=1: DOWN\n` + "\n" + `A: ports/2/phys_state=2: Polling\n` + "\n" + `A: ports/2/state=1: DOWN\n`,
		}, want: itself +
			"  sick: port 1: state 1: DOWN, phys_state 5: LinkUp; port 2: state 1: DOWN, phys_state 2: Polling" + nodes},
		{name: "no port", recording: "infiniband-mlx5", edits: []string{"A: ports/1/phys_state=5: LinkUp\\n\nA: ports/1/state=4: ACTIVE\\n\n", ""}, want: itself +
			"  sick: the adapter has no port" + nodes},
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

// A container gets the nodes for the fabric manager only if the resource requests them.
func TestInfiniBandExtras(t *testing.T) {
	const itself = `infiniband-b8cef60300a12b3c "MT4129 MT_0000000838" numa0` + "\n"
	const usual = `
			  /dev/infiniband/uverbs0 = /dev/infiniband/by-path/pci-0000:19:00.0-uverbs
			  /dev/infiniband/rdma_cm`
	const umadNode = "\n  /dev/infiniband/umad0 = /dev/infiniband/by-path/pci-0000:19:00.0-umad"
	const issmNode = "\n  /dev/infiniband/issm0 = /dev/infiniband/by-path/pci-0000:19:00.0-issm"
	asking := func(extras ...string) []device.Rule {
		return []device.Rule{{Resource: "test/infiniband", Class: &device.InfiniBand, Extras: extras}}
	}
	testSights(t, []sight{
		{name: "none", recording: "infiniband-mlx5", rules: asking(), want: itself + usual[1:]},
		{name: "umad", recording: "infiniband-mlx5", rules: asking("umad"), want: itself + usual[1:] + umadNode},
		{name: "both", recording: "infiniband-mlx5", rules: asking("umad", "issm"), want: itself + usual[1:] + umadNode + issmNode},
		{name: "of two ports", recording: "infiniband-mlx5", rules: asking("umad"), edits: []string{
			"P: /devices/virtual/misc", "P: /devices/pci0000:15/0000:15:01.0/0000:19:00.0/infiniband_mad/umad1\nN: infiniband/umad1\n" +
				"E: SUBSYSTEM=infiniband_mad\nE: MAJOR=231\nE: MINOR=1\nA: ibdev=mlx5_0\\n\nA: port=2\\n\n\nP: /devices/virtual/misc",
		}, want: itself + usual[1:] + umadNode + "\n  /dev/infiniband/umad1"},
		{name: "renamed", recording: "infiniband-mlx5", rules: asking("umad", "issm"), edits: []string{
			"infiniband/mlx5_0", "infiniband/ibp25s0", "A: ibdev=mlx5_0", "A: ibdev=ibp25s0",
		}, want: itself + usual[1:] + umadNode + issmNode},
		{name: "another's umad", recording: "infiniband-mlx5", rules: asking("umad"), edits: []string{
			"A: ibdev=mlx5_0\\n\nA: port", "A: ibdev=mlx5_1\\n\nA: port",
		}, want: itself + "  held back: not complete: the adapter has no umad device: load the ib_umad module"},
		{name: "without the node", recording: "infiniband-mlx5", rules: asking("umad"), edits: []string{"N: infiniband/umad0", "N: infiniband/other"}, want: itself +
			"  held back: not complete: /dev/infiniband/umad0 is missing"},
		{name: "a port that has no subnet manager", recording: "infiniband-sriov", rules: []device.Rule{{
			Resource: "test/infiniband", Class: &device.InfiniBand, Extras: []string{"umad", "issm"}, Match: map[string]string{"NAME": "rocep59s0f0v0"},
		}}, want: `
			infiniband-0c42a10300654321 "MT4125 MT_0000000359" numa1
			  held back: not for containers: divided into virtual functions, which are offered instead: rocep59s0f0v0, rocep59s0f0v1
			infiniband-7a1bc2fffe334455 "MT4126 MT_0000000359" numa1
			  held back: not complete: the adapter has no issm device: load the ib_umad module if a port is InfiniBand
			infiniband-0000:3b:00.2 "MT4126 MT_0000000359" numa1
			  held back: no resource matches the device: test/infiniband: NAME is "rocep59s0f0v1", not "rocep59s0f0v0"`},
	})
}

func TestInfiniBandVirtualFunctions(t *testing.T) {
	itself := func(id, model, number, slot, findings string) string {
		return "infiniband-" + id + ` "` + model + ` MT_0000000359" numa1` + "\n" + findings +
			"  /dev/infiniband/uverbs" + number + " = /dev/infiniband/by-path/pci-" + slot + "-uverbs\n  /dev/infiniband/rdma_cm\n"
	}
	all := func(physical, virtual string) string {
		return itself("0c42a10300654321", "MT4125", "0", "0000:3b:00.0", physical) +
			itself("7a1bc2fffe334455", "MT4126", "1", "0000:3b:00.1", virtual) +
			itself("0000:3b:00.2", "MT4126", "2", "0000:3b:00.2", virtual)
	}
	const divided = "  held back: not for containers: divided into virtual functions, which are offered instead: "
	const exclusive = "  warning: RDMA devices belong to one network namespace each: only pods with hostNetwork can open this device " +
		"(rdma system set netns shared; at boot: options ib_core netns_mode=1 in /etc/modprobe.d)\n"
	const silent = "the PCI configuration space does not answer: the device has fallen off the bus\n"
	testSights(t, []sight{
		{name: "both kinds", recording: "infiniband-sriov", want: all(divided+"rocep59s0f0v0, rocep59s0f0v1\n", "")},
		{name: "virtual machines have them all", recording: "infiniband-sriov", edits: []string{
			"infiniband/rocep59s0f0v", "other/rocep59s0f0v", "SUBSYSTEM=infiniband\nE: NAME=rocep59s0f0v", "SUBSYSTEM=other\nE: NAME=rocep59s0f0v",
		}, want: itself(
			"0c42a10300654321", "MT4125", "0", "0000:3b:00.0", "")},
		{name: "none", recording: "infiniband-sriov", edits: []string{"sriov_numvfs=3", "sriov_numvfs=0"}, want: all("", "")},
		{name: "network namespaces of their own", recording: "infiniband-sriov", edits: []string{"netns_mode=Y", "netns_mode=N"}, want: all(
			divided+"rocep59s0f0v0, rocep59s0f0v1\n"+exclusive, exclusive)},
		{name: "off the bus, with all its virtual functions", recording: "infiniband-sriov", edits: []string{
			"A: sriov_numvfs=3", "H: config=ffffffff\nA: sriov_numvfs=3",
		}, want: all(divided+"rocep59s0f0v0, rocep59s0f0v1\n  sick: "+silent, "  sick: physical function 0000:3b:00.0: "+silent)},
	})
}
