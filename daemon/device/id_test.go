// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

// longestID is the maximum ID length that the kubelet accepts, 63 characters, less the suffix of a share.
const longestID = 58

// cdiName matches the device names that CDI allows (SPEC.md of the Container Device Interface).
var cdiName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$`)

func TestMakeID(t *testing.T) {
	for _, test := range []struct {
		parts []string
		want  string
	}{
		{[]string{"gpu", "0000:3b:00.0"}, "gpu-0000:3b:00.0"},
		{[]string{"nvme", "eui.0025385b61b01234"}, "nvme-eui.0025385b61b01234"},
		{[]string{"node", "A_B"}, "node-A_B"},
		{[]string{"node", "A B"}, "node-A-B-5f12933f"},
		{[]string{"node", "A/B"}, "node-A-B-4d885a50"},
		{[]string{"node", "größe"}, "node-gr--e-75abf301"},
		{[]string{"node", ""}, "node-f8dadb74"},
		{[]string{"node", strings.Repeat("x", 53)}, "node-" + strings.Repeat("x", 53)},
		{[]string{"node", strings.Repeat("x", 54)}, "node-" + strings.Repeat("x", 44) + "-6de08a16"},
		{[]string{"node", "fe80::1"}, "node-fe80:-1-21a9601a"},
		{[]string{"node", ":::", "::"}, "node-7c6c9621"},
		{[]string{"node", "a:", ":b"}, "node-a:-:b"},
		{[]string{""}, "e3b0c442"},
		{[]string{"//"}, "a2c23396"},
	} {
		if got := device.MakeID(test.parts...); got != test.want {
			t.Errorf("MakeID(%q) = %q, want %q", test.parts, got, test.want)
		}
	}
}

func TestMakeIDKeepsApart(t *testing.T) {
	made := make(map[string]string)
	for i := range 2000 {
		for _, original := range []string{
			fmt.Sprint("disk ", i), fmt.Sprint("disk_", i), fmt.Sprint("disk/", i), fmt.Sprint("disk-", i), fmt.Sprint(i, "ß"),
			strings.Repeat("long", 20) + fmt.Sprint(i), fmt.Sprint(i) + strings.Repeat("long", 20),
		} {
			id := device.MakeID("node", original)
			if other, ok := made[id]; ok {
				t.Fatalf("%q and %q have one ID, %q", original, other, id)
			}
			made[id] = original
		}
	}
}

func FuzzMakeID(f *testing.F) {
	for _, seed := range []string{"", "-", "0000:3b:00.0", "::", ":", "a:::b", "a b", "\xff\xfe", "ß", strings.Repeat("a/", 2048)} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		id := device.MakeID(a, b)
		if len(id) > longestID || !cdiName.MatchString(id) || strings.Contains(id, "::") {
			t.Fatalf("MakeID(%q, %q) = %q", a, b, id)
		}
		if again := device.MakeID(a, b); again != id {
			t.Fatalf("MakeID(%q, %q) = %q, then %q", a, b, id, again)
		}
	})
}
