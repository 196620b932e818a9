// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/metalplug/metalplug/daemon/inventory"
)

const (
	// prefix begins our vendors and our files.
	prefix = "metalplug."
	// suffix makes the runtime read a file, and read it as JSON.
	suffix = ".json"
	// fileSize leaves room in a file name (NAME_MAX) for what a temporary file has more.
	fileSize = 240
)

// Kind returns the CDI kind of a resource's devices, "metalplug.nvidia.com/gpu" for nvidia.com/gpu. It is not the name of the
// resource as it stands. The vendor's own tools describe the same devices under that kind, and a runtime takes no device that
// two specs describe. The domain is in the vendor because a class with a dot in it is unknown to runtimes with CDI before
// 0.6.
func Kind(resource string) string {
	domain, class, _ := strings.Cut(resource, "/")
	if !parser.IsLetter(rune(class[0])) {
		// Other than the name of a resource, a class begins with a letter. No domain ends in "_n".
		domain, class = domain+"_n", "n"+class
	}
	return prefix + domain + "/" + class
}

// fileName returns the name of the file with a resource's spec. Domains have no "_", so no two resources share one.
func fileName(resource string) string {
	name := prefix + strings.Replace(resource, "/", "_", 1)
	if most := fileSize - len(suffix); len(name) > most {
		sum := sha256.Sum256([]byte(resource))
		digest := "-" + hex.EncodeToString(sum[:4])
		name = name[:most-len(digest)] + digest
	}
	return name + suffix
}

// Names returns the names of devices in the spec of a kind, ours or a foreign one.
func Names(kind string, devices []*inventory.Status) []string {
	vendor, class := parser.ParseQualifier(kind)
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = parser.QualifiedName(vendor, class, d.Device.ID)
	}
	return names
}
