// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

// The verdicts are those of IsExtendedResourceName in k8s.io/kubernetes v1.36.3, asked name by name.
func TestCheckName(t *testing.T) {
	domain := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 60)+".", 4), ".") // 243 bytes
	for name, want := range map[string]string{
		"nvidia.com/gpu":                 "",
		"gpu.intel.com/i915":             "",
		"example.com/A_b.c-9":            "",
		"a/b":                            "",
		"3com.example/x":                 "",
		"localhost/x":                    "",
		"kubernetes.io.example.com/x":    "",
		"example.com/kubernetes.io":      "",
		"myrequests.com/x":               "",
		"example.com/requests.x":         "",
		"hugepages-2mi/x":                "",
		domain + "d/x":                   "",
		"a/" + strings.Repeat("n", 63):   "",
		strings.Repeat("d", 64) + ".a/x": "", // longer than a label of DNS, but the rule counts no labels

		"":                               `"" has no domain: it must be like "example.com/name"`,
		"gpu":                            `"gpu" has no domain: it must be like "example.com/name"`,
		"cpu":                            `"cpu" has no domain: it must be like "example.com/name"`,
		"kubernetes.io/x":                `"kubernetes.io/x" is in a domain of Kubernetes itself, kubernetes.io`,
		"node.kubernetes.io/x":           `"node.kubernetes.io/x" is in a domain of Kubernetes itself, kubernetes.io`,
		"mykubernetes.io/x":              `"mykubernetes.io/x" is in a domain of Kubernetes itself, kubernetes.io`,
		"example.com/kubernetes.io/x":    `"example.com/kubernetes.io/x" is in a domain of Kubernetes itself, kubernetes.io`,
		"requests.example.com/x":         `"requests.example.com/x" begins with "requests.", which names quotas`,
		"example.com/a/b":                `"example.com/a/b" has more than one slash`,
		"example.com//b":                 `"example.com//b" has more than one slash`,
		"/x":                             `"/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"Example.com/x":                  `"Example.com/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"example..com/x":                 `"example..com/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		".com/x":                         `".com/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"com./x":                         `"com./x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"-a.com/x":                       `"-a.com/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"a_b.com/x":                      `"a_b.com/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"exämple.com/x":                  `"exämple.com/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"a b/x":                          `"a b/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		"example.com\n/x":                `"example.com\n/x" has no valid domain before the slash: lower-case letters, digits, "-" and "." like "example.com"`,
		domain + "dd/x":                  `"` + domain[:80] + `" has a domain of 245 bytes, at most 244 are possible`,
		"example.com/":                   `"example.com/" has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"example.com/-x":                 `"example.com/-x" has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"example.com/x.":                 `"example.com/x." has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"example.com/x:y":                `"example.com/x:y" has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"example.com/x\n":                `"example.com/x\n" has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"example.com/ä":                  `"example.com/ä" has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"example.com/x\x00":              `"example.com/x\x00" has no valid name after the slash: letters, digits, "-", "_" and ".", at both ends a letter or digit`,
		"a/" + strings.Repeat("n", 64):   `"a/` + strings.Repeat("n", 64) + `" has 64 bytes after the slash, at most 63 are possible`,
		"a/" + strings.Repeat("n", 4096): `"a/` + strings.Repeat("n", 78) + `" has 4096 bytes after the slash, at most 63 are possible`,
	} {
		got := ""
		if err := checkName(name); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q:\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestCheckWords(t *testing.T) {
	long := strings.Repeat("u", 246)
	for _, test := range []struct {
		name      string
		check     func(string) error
		good, bad []string
	}{
		{
			"CDI kind", checkCDIKind,
			[]string{"nvidia.com/gpu", "a/b", "A_b-c.d9/e_f"},
			[]string{"", "/", "a/", "/b", "a", "3com.example/x", "a/3", "a./b", "a/b-", "a/b/c", "a b/c", "ä/b", "a/b=0"},
		},
		{
			"permissions", checkPermissions,
			[]string{"r", "w", "m", "rw", "wr", "rwm", "mwr"},
			[]string{"", "x", "rwx", "RW", "rr", "rwmr", "r w", "ä", "r\x00"},
		},
		{
			"unit", checkUnit,
			[]string{"a@.service", `dev-x:y_z.1\x2d@.service`, long[:246] + "@.service"},
			[]string{"", "a.service", "@.service", "a@", "a@b.service", "a@.timer", "a/b@.service", "a@@.service", "a b@.service", long + "u@.service", "a@.service\n"},
		},
		{
			"property", checkProperty,
			[]string{"PCI_ID", "ID_MODEL", ".ID_X", "_a", "id.x-2", "ATTR{size}", "ATTR{queue/rotational}", "ATTR{a b}"},
			[]string{"", "1A", "A B", "A:B", "ENV{X}", "ATTRS{x}", "ATTR{x", "ATTR{}", "ATTR{/etc/x}", "ATTR{../x}", "ATTR{a\x00}", "attr{x}", "Ä"},
		},
		{
			"pattern", checkPattern,
			[]string{"", "*", "a|b", "[a-c]?", `\[`, "/dev/*"},
			[]string{"[", "a|[", "[a-", `a\`, "[]a"},
		},
		{
			"path", checkPath,
			[]string{"/", "/a b", "/a/../b"},
			[]string{"", "a", "./a", "~/a", "/a\x00"},
		},
	} {
		for _, s := range test.good {
			if err := test.check(s); err != nil {
				t.Errorf("%s %q: %v", test.name, s, err)
			}
		}
		for _, s := range test.bad {
			if test.check(s) == nil {
				t.Errorf("%s %q is accepted", test.name, s)
			}
		}
	}
}
