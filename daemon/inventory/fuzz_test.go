// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"reflect"
	"testing"
)

// FuzzIdentities: what was kept and can be read is kept again as it was.
func FuzzIdentities(f *testing.F) {
	for _, text := range []string{
		`{"version":1,"health":{},"devices":[]}`,
		`{"version":1,"devices":[{"id":"a","class":"nvme","resource":"x/y","numaNode":-1,"present":true,"held":true,"pods":["p"]}]}`,
		`{"version":2}`, `{`, ``, `null`, `{"version":1,"devices":null}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := (&Store{}).decode(text)
		if err != nil {
			return
		}
		var written bytes.Buffer
		if err := c.encode(&written); err != nil {
			t.Fatalf("write what %q says: %v", text, err)
		}
		again, err := (&Store{}).decode(written.Bytes())
		if err != nil {
			t.Fatalf("%q is written as %q: %v", text, written.Bytes(), err)
		}
		if len(c.Devices) == 0 {
			c.Devices, again.Devices = nil, nil
		}
		var second bytes.Buffer
		if err := again.encode(&second); err != nil || second.String() != written.String() {
			t.Errorf("%q is written as %q, then as %q: %v", text, written.Bytes(), second.Bytes(), err)
		}
		if !reflect.DeepEqual(ids(c), ids(again)) {
			t.Errorf("%q has %v, written %v", text, ids(c), ids(again))
		}
	})
}

func ids(c contents) (all []string) {
	for _, r := range c.Devices {
		all = append(all, r.ID)
	}
	return all
}
