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
	// prefix is the beginning of the CDI vendors and of the file names that metalplug uses.
	prefix = "metalplug."
	// suffix is the file extension of JSON specs. The runtime ignores other extensions.
	suffix = ".json"
	// fileSize is the maximum length of a file name. The kernel allows longer names (NAME_MAX), but a temporary file also needs
	// room for its suffix.
	fileSize = 240
)

// Kind returns the CDI kind of a resource's devices, such as "metalplug.nvidia.com/gpu" for nvidia.com/gpu. The kind must differ
// from the name of the resource. The vendor's own tools may use this name as the kind for the same devices, and a runtime rejects
// a CDI name that two specs define. Runtimes with CDI before 0.6 reject a class that contains a dot. Therefore, the domain of the
// resource becomes part of the vendor and not of the class.
func Kind(resource string) string {
	domain, class, _ := strings.Cut(resource, "/")
	if !parser.IsLetter(rune(class[0])) {
		// The class in a CDI kind must begin with a letter, but the last part of a resource name may begin with a digit. The
		// result is still unique, because no domain ends in "_n".
		domain, class = domain+"_n", "n"+class
	}
	return prefix + domain + "/" + class
}

// fileName returns the name of a resource's spec file. Domains contain no "_", so no two resources share a file.
func fileName(resource string) string {
	name := prefix + strings.Replace(resource, "/", "_", 1)
	if most := fileSize - len(suffix); len(name) > most {
		sum := sha256.Sum256([]byte(resource))
		digest := "-" + hex.EncodeToString(sum[:4])
		name = name[:most-len(digest)] + digest
	}
	return name + suffix
}

// Names returns the CDI names of devices with the given kind. The spec for this kind may be from metalplug or from another
// program.
func Names(kind string, devices []*inventory.Status) []string {
	vendor, class := parser.ParseQualifier(kind)
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = parser.QualifiedName(vendor, class, d.Device.ID)
	}
	return names
}
