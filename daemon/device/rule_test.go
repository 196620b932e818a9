// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"testing"
)

func TestRuleFor(t *testing.T) {
	h, devices := recorded(t, "nvme")
	u := devices[len(devices)-1]
	nvme := func(match, exclude map[string]string) []Rule {
		return []Rule{{Resource: "test/nvme", Class: &NVMe, Match: match, Exclude: exclude}}
	}
	for _, test := range []struct {
		name  string
		rules []Rule
		want  string // the error, or else the resource
	}{
		{"own property", nvme(map[string]string{"ID_NSID": "2"}, nil), "test/nvme"},
		{"property of the controller", nvme(map[string]string{"NVME_TRTYPE": "pcie"}, nil), "test/nvme"},
		{"property of the function", nvme(map[string]string{"PCI_SLOT_NAME": "0000:65:*", "DRIVER": "nvme"}, nil), "test/nvme"},
		{"attribute", nvme(map[string]string{"ATTR{nsid}": "2|3"}, nil), "test/nvme"},
		{"no such property", nvme(map[string]string{"ID_WWN": "*", "NONE": "*"}, nil), "no resource takes it: test/nvme: it has no NONE"},
		{"no such attribute", nvme(map[string]string{"ATTR{none}": "*"}, nil), "no resource takes it: test/nvme: it has no ATTR{none}"},
		{"another value", nvme(map[string]string{"ID_NSID": "1"}, nil), `no resource takes it: test/nvme: ID_NSID is "2", not "1"`},
		{
			"excluded", nvme(map[string]string{"ID_NSID": "2"}, map[string]string{"PCI_SLOT_NAME": "0000:65:00.0"}),
			`no resource takes it: test/nvme: excluded by PCI_SLOT_NAME = "0000:65:00.0"`,
		},
		{"excluded by what it has not", nvme(nil, map[string]string{"NONE": "*"}), "test/nvme"},
		{"of another class", []Rule{{Resource: "test/gpu", Class: &GPU}}, "no resource of class nvme is configured"},
		{"none", nil, "no resource of class nvme is configured"},
		{
			"the first that matches",
			[]Rule{{Resource: "a", Class: &NVMe, Match: map[string]string{"ID_NSID": "1"}}, {Resource: "b", Class: &NVMe}, {Resource: "c", Class: &NVMe}},
			"b",
		},
		{
			"none of two",
			[]Rule{{Resource: "a", Class: &NVMe, Match: map[string]string{"ID_NSID": "1"}}, {Resource: "b", Class: &NVMe, Match: map[string]string{"X": "1"}}},
			`no resource takes it: a: ID_NSID is "2", not "1"; b: it has no X`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			rule, err := ruleFor(h, test.rules, Device{Class: &NVMe, Udev: u})
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = rule.Resource
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// To overrule one reason is not to overrule another.
func TestForgive(t *testing.T) {
	inUse, excluded, incomplete := inUsef("swap"), excludedf("a display"), incompletef("no node")
	byName := map[string]string{"DEVNAME": "/dev/x"}
	for _, test := range []struct {
		name string
		rule Rule
		err  error
		want bool // forgiven
	}{
		{"nothing", Rule{}, nil, true},
		{"in use", Rule{}, inUse, false},
		{"in use, allowed", Rule{AllowInUse: true}, inUse, true},
		{"in use, named", Rule{Match: byName}, inUse, false},
		{"excluded", Rule{}, excluded, false},
		{"excluded, in use allowed", Rule{AllowInUse: true}, excluded, false},
		{"excluded, named", Rule{Match: byName}, excluded, true},
		{"excluded, by hardware", Rule{Match: map[string]string{"PCI_ID": "1AF4:1050"}}, excluded, true},
		{"excluded, by a pattern", Rule{Match: map[string]string{"PCI_ID": "1AF4:*"}}, excluded, false},
		{"excluded, by alternatives", Rule{Match: map[string]string{"DRIVER": "ast|mgag200"}}, excluded, true},
		{"excluded, by another property", Rule{Match: map[string]string{"ID_NSID": "1"}}, excluded, false},
		{"both", Rule{}, joined(inUse, excluded), false},
		{"both, one allowed", Rule{AllowInUse: true}, joined(inUse, excluded), false},
		{"both, one named", Rule{Match: byName}, joined(excluded, inUse), false},
		{"both overruled", Rule{AllowInUse: true, Match: byName}, joined(inUse, excluded), true},
		{"incomplete", Rule{AllowInUse: true, Match: byName}, incomplete, false},
		{"incomplete and in use", Rule{AllowInUse: true, Match: byName}, joined(inUse, incomplete), false},
		{"something else", Rule{AllowInUse: true, Match: byName}, errors.New("else"), false},
	} {
		if err := test.rule.forgive(test.err); (err == nil) != test.want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestAttrKey(t *testing.T) {
	for key, want := range map[string]string{"ATTR{nsid}": "nsid", "ATTR{queue/rotational}": "queue/rotational", "DRIVER": "", "ATTR{open": ""} {
		if name, ok := AttrKey(key); ok != (want != "") || ok && name != want {
			t.Errorf("AttrKey(%q) = %q, %v", key, name, ok)
		}
	}
}

func TestJoined(t *testing.T) {
	a, b := errors.New("a"), fmt.Errorf("b: %w", ErrGone)
	if err := joined(nil, nil); err != nil {
		t.Errorf("nothing joined: %v", err)
	}
	if err := joined(nil, a, nil); err != a {
		t.Errorf("one joined: %v", err)
	}
	if err := joined(a, b); err.Error() != "a; b: gone" || !errors.Is(err, a) || !errors.Is(err, ErrGone) {
		t.Errorf("two joined: %v", err)
	}
}
