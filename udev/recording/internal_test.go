// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

func FuzzEscape(f *testing.F) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, text := range []string{"", "live\n", `C:\x`, "\x00\xff\\7", "ä", string(every)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		escaped := escape(text)
		if strings.ContainsFunc(escaped, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is escaped as %q", text, escaped)
		}
		if back, err := unescape(escaped); err != nil || back != text {
			t.Errorf("%q comes back as %q, %v", text, back, err)
		}
	})
}

func TestPseudonymsHaveTheSameForm(t *testing.T) {
	for value, form := range map[string]string{
		"S64HNE0T500123":                       `^[A-Z]\d\d[A-Z]{3}\d[A-Z]\d{6}$`,
		"36344830545001230025384300000001":     `^\d{32}$`,
		"5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a": `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`,
		"b8ce:f603:00a1:2b3c":                  `^[0-9a-f]{4}(:[0-9a-f]{4}){3}$`,
		"data disk":                            `^[a-z]{4} [a-z]{4}$`,
		strings.Repeat("a", 100):               `^[a-f]{100}$`,
	} {
		made := pseudonym(value)
		if !regexp.MustCompile(form).MatchString(made) || made == value {
			t.Errorf("%s becomes %s", value, made)
		}
	}
}

func TestNotMasked(t *testing.T) {
	s := make(secrets)
	for _, value := range []string{"", "1234", "0x0000000000000000", "00000000-0000-0000-0000-000000000000", "eui.0000", "unknown serial"} {
		s.add(value)
	}
	s.attr("model", "Samsung SSD 990")
	s.property("ID_MODEL", "Samsung SSD 990")
	if len(s) > 0 {
		t.Errorf("%v", s)
	}
}

func TestMaskOfSecretsInSecrets(t *testing.T) {
	s := make(secrets)
	s.attr("ports/1/serial", "ABCDE\n")
	s.property("ID_WWN", "eui.ABCDEFGHIJ")
	masked := s.mask("ABCDEFGHIJ ABCDE 4142434445 x")
	if strings.Contains(masked, "ABCDE") || strings.Contains(masked, "4142434445") || !strings.HasSuffix(masked, " x") {
		t.Errorf("%q", masked)
	}
	// The longer identity is replaced as a whole. Otherwise it would be replaced in two parts, which would match the
	// other texts only by chance.
	if fields := strings.Fields(masked); strings.HasPrefix(fields[0], fields[1]) {
		t.Errorf("%q", masked)
	}
}

func TestMountsOfDisks(t *testing.T) {
	const table = `22 1 259:2 / / rw - ext4 /dev/root rw
23 22 0:20 / /proc rw - proc proc rw
24 22 0:45 / /srv rw - btrfs /dev/sdb rw
25 22 0:50 / /home/ann rw - nfs4 server:/home rw
26 22 8:16 / /mnt rw - xfs /dev/sdc rw
malformed
`
	devices := []udev.Device{
		{Subsystem: "block", Properties: udev.NewProperties(map[string]string{"MAJOR": "259", "MINOR": "2"})},
		{Subsystem: "mem", Properties: udev.NewProperties(map[string]string{"MAJOR": "0", "MINOR": "50"})},
	}
	var kept []string
	for line := range strings.Lines(diskMounts(table, devices)) {
		kept = append(kept, strings.Fields(line)[4])
	}
	if want := []string{"/", "/srv", "/mnt"}; !slices.Equal(kept, want) {
		t.Errorf("%v, want %v", kept, want)
	}
}

// Attributes that are too deep, other devices, and links to nothing in sysfs are left out.
func TestSkippedAttributes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("state", "live\n", 0o444)
	write("vpd", "x", 0o444)
	write("resource0", "x", 0o444)
	write("uevent", "x", 0o444)
	write("config", strings.Repeat("\xff", 256), 0o444)
	write("long", strings.Repeat("x", 2*sysfs.AttrSize), 0o444)
	write("ports/1/state", "4: ACTIVE\n", 0o444)
	write("child/uevent", "", 0o444)
	write("child/state", "x", 0o444)
	write("a/b/c/d/e/f", "x", 0o444)
	for name, target := range map[string]string{"driver": "../../bus/pci/drivers/nvme", "absolute": "/etc", "subsystem": "../x"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	(&Recorder{secrets: make(secrets)}).writeAttrs(&text, dir, "", attrDepth)
	want := "H: config=" + strings.Repeat("ff", configSize) + "\nL: driver=../../bus/pci/drivers/nvme\nA: long=" +
		strings.Repeat("x", sysfs.AttrSize) + "\nA: ports/1/state=4: ACTIVE\\n\nA: state=live\\n\n"
	if text.String() != want {
		t.Errorf("%s\nwant\n%s", text.String(), want)
	}
}
