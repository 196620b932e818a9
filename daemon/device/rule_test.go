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
		{"PCI ID in another case", nvme(map[string]string{"PCI_ID": "144d:a80a"}, nil), "test/nvme"},
		{"attribute", nvme(map[string]string{"ATTR{nsid}": "2|3"}, nil), "test/nvme"},
		{"no such property", nvme(map[string]string{"ID_WWN": "*", "NONE": "*"}, nil), "no resource takes it: test/nvme: it has no NONE"},
		{"no such attribute", nvme(map[string]string{"ATTR{none}": "*"}, nil), "no resource takes it: test/nvme: it has no ATTR{none}"},
		{"another value", nvme(map[string]string{"ID_NSID": "1"}, nil), `no resource takes it: test/nvme: ID_NSID is "2", not "1"`},
		{
			"another case", nvme(map[string]string{"DRIVER": "NVM*"}, nil),
			`no resource takes it: test/nvme: DRIVER is "nvme", not "NVM*": upper and lower case differ`,
		},
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
			rule, err := ruleFor(h, test.rules, Device{Class: &NVMe, Udev: &u}, nil)
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
	inUse, excluded, unusual, incomplete := inUsef("swap"), excludedf("divided"), byNamef("a display"), incompletef("no node")
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
		{"excluded, named", Rule{Match: byName}, excluded, false},
		{"excluded, by hardware", Rule{Match: map[string]string{"PCI_ID": "10DE:2330"}}, excluded, false},
		{"excluded, by driver", Rule{Match: map[string]string{"DRIVER": "nvidia"}}, excluded, false},
		{"excluded, by slot", Rule{Match: map[string]string{"PCI_SLOT_NAME": "0000:18:00.0"}}, excluded, false},
		{"unusual", Rule{}, unusual, false},
		{"unusual, in use allowed", Rule{AllowInUse: true}, unusual, false},
		{"unusual, named", Rule{Match: byName}, unusual, true},
		{"unusual, by hardware", Rule{Match: map[string]string{"PCI_ID": "1AF4:1050"}}, unusual, true},
		{"unusual, by a pattern", Rule{Match: map[string]string{"PCI_ID": "1AF4:*"}}, unusual, false},
		{"unusual, by alternatives", Rule{Match: map[string]string{"DRIVER": "ast|mgag200"}}, unusual, true},
		{"unusual, by another property", Rule{Match: map[string]string{"ID_NSID": "1"}}, unusual, false},
		{"unusual and excluded, named", Rule{Match: byName}, joined(unusual, excluded), false},
		{"both", Rule{}, joined(inUse, unusual), false},
		{"both, one allowed", Rule{AllowInUse: true}, joined(inUse, unusual), false},
		{"both, one named", Rule{Match: byName}, joined(unusual, inUse), false},
		{"both overruled", Rule{AllowInUse: true, Match: byName}, joined(inUse, unusual), true},
		{"in use and excluded, all overruled", Rule{AllowInUse: true, Match: byName}, joined(inUse, excluded), false},
		{"incomplete", Rule{AllowInUse: true, Match: byName}, incomplete, false},
		{"incomplete and in use", Rule{AllowInUse: true, Match: byName}, joined(inUse, incomplete), false},
		{"something else", Rule{AllowInUse: true, Match: byName}, errors.New("else"), false},
	} {
		if err := test.rule.forgive(test.err); (err == nil) != test.want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// A part of a device is told from the whole by a property that is not udev's.
func TestRuleForPart(t *testing.T) {
	h, devices := recorded(t, "gpu-nvidia")
	u := devices[len(devices)-1]
	rule := func(match, exclude string) []Rule {
		r := Rule{Resource: "test/gpu", Class: &GPU, Match: map[string]string{"PCI_ID": "10DE:*"}}
		if match != "" {
			r.Match["METALPLUG_PART"] = match
		}
		if exclude != "" {
			r.Exclude = map[string]string{"METALPLUG_PART": exclude}
		}
		return []Rule{r}
	}
	for _, test := range []struct {
		part  string
		rules []Rule
		want  bool
	}{
		{"gi1/ci0", rule("", ""), true},
		{"gi1/ci0", rule("*", ""), true},
		{"gi1/ci0", rule("gi1/*", ""), true},
		{"gi1/ci0", rule("gi2/*", ""), false},
		{"gi1/ci0", rule("", "*"), false},
		{"", rule("", ""), true},
		{"", rule("*", ""), false},
		{"", rule("", "*"), true},
	} {
		if _, err := ruleFor(h, test.rules, Device{Class: &GPU, Part: test.part, Udev: &u}, nil); (err == nil) != test.want {
			t.Errorf("part %q, match %v, exclude %v: %v", test.part, test.rules[0].Match, test.rules[0].Exclude, err)
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

// A rule names a device by its ID, of class node too, whose rules choose the subjects.
func TestRuleForID(t *testing.T) {
	h, devices := recorded(t, "gpu-nvidia")
	u := devices[len(devices)-1]
	all := []Rule{{Resource: "test/gpu", Class: &GPU}}
	id := Look(h, all, &u)[0].Device.ID
	for _, test := range []struct {
		match, exclude string
		want           bool
	}{
		{id, "", true},
		{"other|" + id, "", true},
		{id[:5] + "*", "", true},
		{"other", "", false},
		{"*", id, false},
		{"*", "other", true},
	} {
		rule := Rule{Resource: "test/gpu", Class: &GPU, Match: map[string]string{IDProperty: test.match}}
		if test.exclude != "" {
			rule.Exclude = map[string]string{IDProperty: test.exclude}
		}
		if got := Look(h, []Rule{rule}, &u)[0].Resource != ""; got != test.want {
			t.Errorf("match %q, exclude %q: taken %v", test.match, test.exclude, got)
		}
	}
}
