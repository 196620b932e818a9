// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
)

func TestTopology(t *testing.T) {
	const gpu = "P: /devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0\n"
	text := bundledText(t, "gpu-server")
	linked := strings.Replace(text, gpu, gpu+"A: current_link_speed=32.0 GT/s PCIe\\n\nA: current_link_width=16\\n\n", 1)
	n := newNode(t, linked, "")
	n.inventory.Allocated(map[string][]string{lastDisk: {lastDisk}}, "")
	n.waitDevice(lastDisk, isHeld)
	code, stdout, stderr := n.ctl("topology")
	if code != exitOK || stderr != "" {
		t.Errorf("exit %d: %s", code, stderr)
	}
	golden(t, "topology.txt", stdout)
	code, stdout, stderr = ctl(t, "topology", "--recording", "gpu-server", "--config", withDisks(t), "-o", "svg")
	if code != exitOK || stderr != "" {
		t.Errorf("exit %d: %s", code, stderr)
	}
	golden(t, "../../../docs/topology.svg", stdout)

	dir := t.TempDir()
	save(t, dir+"/recording", text)
	save(t, dir+"/recorded.toml", "hardware.source = \"recording:recording\"\n")
	code, stdout, stderr = ctl(t, "topology", "--config", dir+"/recorded.toml")
	if code != exitOK || !strings.Contains(stdout, "GPU0") {
		t.Errorf("--config without --recording: exit %d: %s", code, stderr)
	}

	for _, recorded := range []string{"gpu-server", "mig-node"} {
		code, stdout, stderr = ctl(t, "topology", "--recording", recorded, "-o", "json")
		var got api.Topology
		if err := json.Unmarshal([]byte(stdout), &got); code != exitOK || err != nil {
			t.Fatalf("%s: exit %d, %v: %s", recorded, code, err, stderr)
		}
		gpus := make(map[string]bool)
		for _, p := range got.Devices {
			if p.Class == "gpu" && p.Resource != "" {
				gpus[p.Name] = true
			}
		}
		for name := range gpus { // the parts of a GPU have the same place
			if len(got.Distances[name]) != len(got.Distances)-1 {
				t.Errorf("%s: %q has the distances %v", recorded, name, got.Distances[name])
			}
		}
		if len(gpus) == 0 {
			t.Errorf("%s: no GPU in %s", recorded, stdout)
		}
	}
}
