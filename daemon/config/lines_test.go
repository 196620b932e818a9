// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestLineIndex(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       map[string]int
	}{
		{"empty", "", map[string]int{}},
		{"keys and tables", "a = 1\n\n[b] # [x]\nc = 1\n[ b . d ]\n", map[string]int{"a": 1, "b": 3, "b.c": 4, "b.d": 5}},
		{"dotted and quoted", "a.b.c = 1\n\"x=y\".'[z]' = 2\n", map[string]int{"a.b.c": 1, `"x=y"."[z]"`: 2}},
		{"indented", "  [a]\n\t[a.b]\n\t c = 1\n", map[string]int{"a": 1, "a.b": 2, "a.b.c": 3}},
		{
			"inline tables", "a = { b = 1, c = { d = '=', e.f = 2 } }\ng = 1\n",
			map[string]int{"a": 1, "a.b": 1, "a.c": 1, "a.c.d": 1, "a.c.e.f": 1, "g": 2},
		},
		{"inline table on lines", "a = { # {\n b = 1,\n\n c = 2,\n}\nd = 1\n", map[string]int{"a": 1, "a.b": 2, "a.c": 4, "d": 6}},
		{
			"long strings", "a = \"\"\"\nb = 1\n\\\"\"\" [c]\n\"\"\"\"\"\nd = '''\n[e]\\''''\nf = \"\"\ng = ''\nh = \"\\\"=\\\\\"\n",
			map[string]int{"a": 1, "d": 5, "f": 7, "g": 8, "h": 9},
		},
		{"arrays", "a = [\n[1,\n2], [ # ]\n'b = 1', \"]\"\n]\n]\nc = 1\n[d]\n", map[string]int{"a": 1, "c": 7, "d": 8}},
		{
			"resources", "[[resource]]\na = 1\nb = { c = 1 }\n[resource.d]\ne = 1\n\n[[resource]]\nd.e = 1\n[[resource]]\n[resource.b]\n",
			map[string]int{
				"resource.0": 1, "resource.0.a": 2, "resource.0.b": 3, "resource.0.b.c": 3, "resource.0.d": 4, "resource.0.d.e": 5,
				"resource.1": 7, "resource.1.d.e": 8, "resource.2": 9, "resource.2.b": 10,
			},
		},
		{"resource as table", "[resource]\na = 1\n", map[string]int{"resource.0": 1, "resource.0.a": 2}},
		{"other arrays of tables", "[[a]]\nb = 1\n[[a]]\nb = 1\n", map[string]int{"a": 1, "a.b": 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var values map[string]any
			meta, err := toml.Decode(test.text, &values)
			if err != nil {
				t.Fatal(err)
			}
			if got := newLineIndex(keyLines(test.text), meta.Keys()); !maps.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
