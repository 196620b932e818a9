// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"testing"
)

// TestRunnable: what cannot be done yet counts for the resources as they are in the end, in the order of the files.
func TestRunnable(t *testing.T) {
	const head = "[[resource]]\nname = \"example.com/"
	dir := tree(t, map[string]string{
		"m.toml": head + "a\"\nclass = \"nvme\"\nreset.scrub = \"zero\"\n" +
			head + "b\"\nclass = \"gpu\"\nunits = { release = \"x@.service\" }\nreset.method = \"pci\"\n",
		"conf.d/1.toml": head + "c\"\nclass = \"nvme\"\nreset.scrub = \"format\"\n" + head + "a\"\nclass = \"nvme\"\n",
	})
	main := filepath.Join(dir, "m.toml")
	if _, err := Load(main); err != nil {
		t.Errorf("sound, but %v", err)
	}
	want := main + `:8: resource.units.release: "x@.service": this version cannot do that yet
` + main + `:9: resource.reset.method: "pci": this version cannot do that yet
` + filepath.Join(dir, "conf.d", "1.toml") + `:4: resource.reset.scrub: "format": this version cannot do that yet`
	if _, err := LoadRunnable(main); err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
}
