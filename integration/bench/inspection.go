// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev/recording"
)

// server is a recording with 8 GPUs, their HCAs and drives.
const server = "gpu-server"

// inspection measures a first inspection of a whole server, one device after the other; the inventory inspects several at the
// same time. It does not read the disks, see [bench.probe]. The floor opens and reads all files of these devices in
// sysfs.
func (b *bench) inspection() ([]result, error) {
	all := recording.Bundled()
	n := slices.IndexFunc(all, func(r recording.BundledFile) bool { return r.Name == server })
	if n < 0 {
		return nil, fmt.Errorf("there is no recording %s", server)
	}
	parsed, err := recording.Parse(all[n].Text)
	if err != nil {
		return nil, err
	}
	m := &machine{root: filepath.Join(b.dir, "server"), devices: parsed.Devices()}
	if err := parsed.Write(m.root); err != nil {
		return nil, err
	}
	rules := config.Default().Rules()
	var ours, theirs samples
	seen := 0
	for range b.countSamples(200) {
		host := m.host() // a new host has no cached data
		seen = 0
		begun := time.Now()
		for _, d := range m.devices {
			for _, s := range device.Inspect(host, rules, &d) {
				if s.Resource != "" && s.Offer == nil {
					seen++
				}
			}
		}
		ours = append(ours, time.Since(begun))
		begun = time.Now()
		if err := readAll(filepath.Join(m.root, "sys")); err != nil {
			return nil, err
		}
		theirs = append(theirs, time.Since(begun))
	}
	what := fmt.Sprintf("a cold inspection of a server of %d devices, %d offered", len(m.devices), seen)
	return []result{within(what+", p50", "ms", ours.percentile(50), 20).above(theirs.percentile(50)).withPercentile(ours)}, nil
}

// readAll reads each file of a tree.
func readAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			_, err = os.ReadFile(path)
		}
		return err
	})
}
