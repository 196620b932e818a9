// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// A file that cannot be replaced is as good as replaced where it says the same already, and only there.
func TestStoreThatCannotBeWrittenHasWhatItHas(t *testing.T) {
	dir := t.TempDir()
	s := OpenStore(dir, slog.New(slog.DiscardHandler))
	defer s.Close()
	keep := func(ids ...string) error {
		c := contents{Version: storeVersion}
		for _, id := range ids {
			c.Devices = append(c.Devices, record{ID: id})
		}
		s.save(c)
		return <-s.flush()
	}
	if err := keep("a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "identities.json.new", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := keep("b", "a"); err != nil {
		t.Errorf("the same is not kept: %v", err)
	}
	for _, ids := range [][]string{{"a"}, {"a", "c"}, {"a", "b", "c"}} {
		if err := keep(ids...); err == nil {
			t.Errorf("%v is kept in place of a and b", ids)
		}
	}
}
