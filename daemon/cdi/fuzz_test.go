// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/metalplug/metalplug/daemon/cdi"
)

func FuzzKindIsTaken(f *testing.F) {
	f.Add("nvidia.com", "gpu")
	f.Add("3", "3")
	f.Add("a-b.c", "x-_.9")
	f.Fuzz(func(t *testing.T, domain, name string) {
		// As the configuration checks them, but that is not known here.
		labels := strings.TrimFunc(domain, func(r rune) bool { return r < 'a' || r > 'z' })
		if labels == "" || strings.Trim(labels, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
			return // the input is invalid
		}
		if parser.ValidateDeviceName(name) != nil || strings.Contains(name, ":") {
			return // the input is invalid
		}
		kind := cdi.Kind(labels + "/" + name)
		if _, _, _, err := parser.ParseQualifiedName(kind + "=id"); err != nil {
			t.Errorf("%s/%s: %v", labels, name, err)
		}
	})
}
