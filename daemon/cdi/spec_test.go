// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

func TestKind(t *testing.T) {
	long := strings.Repeat("a.", 121) + "aa/" + strings.Repeat("b", 63)
	seen := make(map[string]string)
	for _, test := range []struct{ resource, kind, file string }{
		{"nvidia.com/gpu", "metalplug.nvidia.com/gpu", "metalplug.nvidia.com_gpu.json"},
		{"nvidia.com/mig-1g.5gb", "metalplug.nvidia.com/mig-1g.5gb", "metalplug.nvidia.com_mig-1g.5gb.json"},
		{"3d.example/x_Y", "metalplug.3d.example/x_Y", "metalplug.3d.example_x_Y.json"},
		{"example.org/3d", "metalplug.example.org_n/n3d", "metalplug.example.org_3d.json"},
		{"example.org/n3d", "metalplug.example.org/n3d", "metalplug.example.org_n3d.json"},
		{"a/7", "metalplug.a_n/n7", "metalplug.a_7.json"},
		{"a/n_n7", "metalplug.a/n_n7", "metalplug.a_n_n7.json"},
		{long, "metalplug." + long, ""},
		{long[:len(long)-1] + "c", "metalplug." + long[:len(long)-1] + "c", ""},
	} {
		kind, file := Kind(test.resource), fileName(test.resource)
		if kind != test.kind || test.file != "" && file != test.file {
			t.Errorf("%s: kind %s, file %s", test.resource, kind, file)
		}
		if _, _, _, err := parser.ParseQualifiedName(kind + "=id"); err != nil {
			t.Errorf("%s: %v", test.resource, err)
		}
		if most := 255 - len(".new"); len(file) > most {
			t.Errorf("%s: the file name has %d bytes", test.resource, len(file))
		}
		for _, name := range []string{kind, file} {
			if other := seen[name]; other != "" {
				t.Errorf("%s and %s have the same %s", test.resource, other, name)
			}
			seen[name] = test.resource
		}
	}
}
