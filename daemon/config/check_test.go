// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The expected results are those of IsExtendedResourceName in k8s.io/kubernetes v1.36.3.
func TestCheckWords(t *testing.T) {
	long := strings.Repeat("u", 246)
	domain := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 60)+".", 4), ".") // 243 bytes
	for _, test := range []struct {
		name      string
		text      string // text of a file, with %s for the checked text
		key       string
		good, bad []string
	}{
		{
			"name", "[[resource]]\nname = %s\nclass = \"gpu\"", "resource.name",
			[]string{
				"nvidia.com/gpu", "gpu.intel.com/i915", "example.com/A_b.c-9", "a/b", "3com.example/x", "localhost/x",
				"kubernetes.io.example.com/x", "example.com/kubernetes.io", "myrequests.com/x", "example.com/requests.x", "hugepages-2mi/x",
				domain + "d/x", "a/" + strings.Repeat("n", 63), strings.Repeat("d", 64) + ".a/x", // the rule does not limit the length of labels
			},
			[]string{
				"", "gpu", "kubernetes.io/x", "node.kubernetes.io/x", "mykubernetes.io/x", "example.com/kubernetes.io/x",
				"requests.example.com/x", "example.com/a/b", "example.com//b", "/x", "Example.com/x", "example..com/x", ".com/x", "com./x",
				"-a.com/x", "a_b.com/x", "exämple.com/x", "a b/x", "example.com\n/x", domain + "dd/x", "example.com/", "example.com/-x",
				"example.com/x.", "example.com/x:y", "example.com/x\n", "example.com/ä", "example.com/x\x00", "a/" + strings.Repeat("n", 64),
			},
		},
		{
			"CDI kind", valid + "inject = \"cdi\"\ncdi_kind = %s", "resource.cdi_kind",
			[]string{"", "nvidia.com/gpu", "a/b", "A_b-c.d9/e_f"},
			[]string{"/", "a/", "/b", "a", "3com.example/x", "a/3", "a./b", "a/b-", "a/b/c", "a b/c", "ä/b", "a/b=0"},
		},
		{
			"permissions", valid + "permissions = %s", "resource.permissions",
			[]string{"r", "w", "m", "rw", "wr", "rwm", "mwr"},
			[]string{"", "x", "rwx", "RW", "rr", "rwmr", "r w", "ä", "r\x00"},
		},
		{
			"unit", valid + "units.init = %s", "resource.units.init",
			[]string{"", "a@.service", `dev-x:y_z.1\x2d@.service`, long[:246] + "@.service"},
			[]string{"a.service", "@.service", "a@", "a@b.service", "a@.timer", "a/b@.service", "a@@.service", "a b@.service", long + "u@.service", "a@.service\n"},
		},
		{
			"property", valid + "match = { %s = \"x\" }", "resource.match",
			[]string{"PCI_ID", "ID_MODEL", ".ID_X", "_a", "id.x-2", "ATTR{size}", "ATTR{queue/rotational}", "ATTR{a b}"},
			[]string{"", "1A", "A B", "A:B", "ENV{X}", "ATTRS{x}", "ATTR{x", "ATTR{}", "ATTR{/etc/x}", "ATTR{../x}", "ATTR{a\x00}", "attr{x}", "Ä"},
		},
		{
			"pattern", valid + "match.PCI_ID = %s", "resource.match",
			[]string{"", "*", "a|b", "[a-c]?", `\[`, "/dev/*"},
			[]string{"[", "a|[", "[a-", `a\`, "[]a"},
		},
		{
			"path", "[paths]\nrun = %s", "paths.run",
			[]string{"/", "/a b", "/a/../b"},
			[]string{"", "a", "./a", "~/a", "/a\x00"},
		},
	} {
		for want, texts := range map[bool][]string{true: test.good, false: test.bad} {
			for _, s := range texts {
				quoted, err := json.Marshal(s)
				if err != nil {
					t.Fatal(err)
				}
				got := problems(t, fmt.Sprintf(test.text, quoted))
				if strings.Contains(got, ": "+test.key) == want {
					t.Errorf("%s %q: %s, want it accepted: %t", test.name, s, got, want)
				}
			}
		}
	}
}
