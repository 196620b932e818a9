// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"testing"
)

// FuzzIdentities: what was kept and can be read is kept again as it was.
func FuzzIdentities(f *testing.F) {
	for _, text := range []string{
		`{"version":2,"health":{},"devices":[]}`,
		`{"version":2,"devices":[{"id":"a","class":"nvme","resource":"x/y","numaNode":-1,"present":true,"state":"in-use","hold":"started","used":true,"tenants":["p"]}]}`,
		`{"version":3}`, `{`, ``, `null`, `{"version":2,"devices":null}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := decode(text)
		if err != nil {
			return
		}
		var written bytes.Buffer
		if err := encodeAll(c, &written); err != nil {
			t.Fatalf("write what %q says: %v", text, err)
		}
		again, err := decode(written.Bytes())
		if err != nil {
			t.Fatalf("%q is written as %q: %v", text, written.Bytes(), err)
		}
		if len(c.Devices) == 0 {
			c.Devices, again.Devices = nil, nil
		}
		var second bytes.Buffer
		if err := encodeAll(again, &second); err != nil || second.String() != written.String() {
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

// encodeAll writes the file with the devices of c.
func encodeAll(c contents, w io.Writer) error {
	var lines [][]byte
	for _, r := range c.Devices {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		lines = append(lines, line)
	}
	all, err := c.encode(lines)
	if err != nil {
		return err
	}
	return all.writeTo(w)
}
