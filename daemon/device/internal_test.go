// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"testing"
)

// A rule that overrules one reason must not overrule another.
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
		{"unusual", Rule{}, unusual, false},
		{"unusual, in use allowed", Rule{AllowInUse: true}, unusual, false},
		{"unusual, named", Rule{Match: byName}, unusual, true},
		{"unusual, by hardware", Rule{Match: map[string]string{"PCI_ID": "1AF4:1050"}}, unusual, true},
		{"unusual, by a pattern", Rule{Match: map[string]string{"PCI_ID": "1AF4:*"}}, unusual, false},
		{"unusual, by alternatives", Rule{Match: map[string]string{"DRIVER": "ast|mgag200"}}, unusual, true},
		{"unusual, by another property", Rule{Match: map[string]string{"ID_NSID": "1"}}, unusual, false},
		{"unusual and excluded, named", Rule{Match: byName}, joinErrors(unusual, excluded), false},
		{"both", Rule{}, joinErrors(inUse, unusual), false},
		{"both, one allowed", Rule{AllowInUse: true}, joinErrors(inUse, unusual), false},
		{"both, one named", Rule{Match: byName}, joinErrors(unusual, inUse), false},
		{"both overruled", Rule{AllowInUse: true, Match: byName}, joinErrors(inUse, unusual), true},
		{"in use and excluded, all overruled", Rule{AllowInUse: true, Match: byName}, joinErrors(inUse, excluded), false},
		{"unread", Rule{}, byNamef("%w", ErrUnproven), false},
		{"unread, in use allowed", Rule{AllowInUse: true}, byNamef("%w", ErrUnproven), false},
		{"unread, named", Rule{Match: byName}, byNamef("%w", ErrUnproven), false},
		{"unread, both", Rule{AllowInUse: true, Match: byName}, byNamef("%w", ErrUnproven), true},
		{"incomplete", Rule{AllowInUse: true, Match: byName}, incomplete, false},
		{"incomplete and in use", Rule{AllowInUse: true, Match: byName}, joinErrors(inUse, incomplete), false},
		{"something else", Rule{AllowInUse: true, Match: byName}, errors.New("else"), false},
	} {
		if err := test.rule.overrule(test.err); (err == nil) != test.want {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
