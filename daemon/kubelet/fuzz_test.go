// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

const fuzzCheckpoint = `{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"example.org/x",` +
	`"DeviceIDs":{"0":["a::1","b"],"-1":["c"]},"AllocResp":"CgA="}],"RegisteredDevices":{"example.org/x":["a"]}},"Checksum":1}`

// FuzzCheckpoint checks that the three readers of a checkpoint agree on the IDs in it.
func FuzzCheckpoint(f *testing.F) {
	for _, text := range []string{fuzzCheckpoint, `{}`, `{"Data":null}`, `[`, ``, `{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"x":[""]}}]}}`} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(dir, checkpoint.File)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		remembered, err := kubelet.CheckpointDevices(dir)
		owners, ownersErr := kubelet.Owners(dir)
		if (err == nil) != (ownersErr == nil) {
			t.Fatalf("%q: %v, %v", text, err, ownersErr)
		}
		for _, devices := range remembered {
			for id, known := range devices {
				if owners[id] == nil || len(known.As) != len(known.Pods) {
					t.Errorf("%q: %s is remembered as %+v; owners %v", text, id, known, owners[id])
				}
			}
		}
	})
}
