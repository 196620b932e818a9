// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// TestClasses checks properties of each class that the compiler cannot check.
func TestClasses(t *testing.T) {
	wellFormed := regexp.MustCompile(`^[a-z]+$`)
	names := make(map[string]bool)
	for _, c := range device.Classes {
		if !wellFormed.MatchString(c.Name) || names[c.Name] {
			t.Errorf("class %q: the name is malformed or not the only one", c.Name)
		}
		names[c.Name] = true
		if c.Identify == nil || c.Allocate == nil {
			t.Errorf("class %s cannot identify and allocate", c.Name)
		}
		if c.Doc == "" || strings.ContainsRune(c.Doc, '\n') {
			t.Errorf("class %s has no documentation of one line: %q", c.Name, c.Doc)
		}
		if len(c.DevNodes) == 0 {
			t.Errorf("class %s hands out no nodes", c.Name)
		}
		if (len(c.Match) == 0) != (c == &device.Generic) {
			t.Errorf("class %s: %d matches", c.Name, len(c.Match))
		}
		for _, m := range slices.Concat(c.Match, c.Wakes) {
			for key, pattern := range m.Properties {
				if err := udev.CheckGlob(pattern); err != nil {
					t.Errorf("class %s: %s = %q: %v", c.Name, key, pattern, err)
				}
			}
		}
		if device.ClassNamed(c.Name) != c {
			t.Errorf("ClassNamed(%q) is another class", c.Name)
		}
	}
	if c := device.ClassNamed("none"); c != nil {
		t.Errorf("ClassNamed(none) = %v", c.Name)
	}
}

// The manual and its readers rely on the comment at the top of each class file.
func TestClassFilesListNeeds(t *testing.T) {
	for _, name := range []string{"gpu.go", "fpga.go", "infiniband.go", "nvme.go", "node.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, heading := range []string{"Follows:", "Identity:", "Health:", "Nodes:", "Needs:"} {
			if !strings.Contains(string(text), "\n// "+heading+" ") {
				t.Errorf("%s: no paragraph %q", name, heading)
			}
		}
	}
}

// recordings returns all recordings of the tests and of the program, by name.
func recordings(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	names, err := filepath.Glob("testdata/*.umockdev")
	if err != nil || len(names) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	for _, r := range recording.Bundled() {
		texts["bundled/"+r.Name] = string(r.Text)
	}
	return texts
}

func TestSightingsOfAllRecordings(t *testing.T) {
	rules := slices.Concat(everything, anyNode(nil))
	for name, text := range recordings(t) {
		h, devices := machine(t, text)
		seen := make(map[string]string)
		for _, s := range inspectAll(h, rules, devices) {
			checkSighting(t, name, s)
			if other, ok := seen[s.Device.ID]; ok && s.Device.ID != "" {
				t.Errorf("%s: %s and %s have one ID, %s", name, s.Device.SysPath, other, s.Device.ID)
			}
			seen[s.Device.ID] = s.Device.SysPath
		}
	}
}

func checkSighting(t *testing.T, name string, s device.Sighting) {
	t.Helper()
	if s.Device.Class == nil || s.Device.SysPath == "" {
		t.Errorf("%s: a sighting of nothing: %+v", name, s.Device)
		return
	}
	if s.Device.ID == "" && s.Offer == nil || s.Device.ID != "" && (len(s.Device.ID) > longestID || !cdiName.MatchString(s.Device.ID)) {
		t.Errorf("%s: %s has the ID %q", name, s.Device.SysPath, s.Device.ID)
	}
	if s.Offer == nil && len(s.Allocation.Nodes) == 0 {
		t.Errorf("%s: %s is offered without a node", name, s.Device.ID)
	}
	if s.Target != nil && (s.Target.SysPath != s.Device.SysPath || s.Target.Class != s.Device.Class.Name) {
		t.Errorf("%s: %s has the target %+v", name, s.Device.ID, s.Target)
	}
	if len(s.Functions) > 0 && !slices.Contains(s.Functions, s.Device.Function()) {
		t.Errorf("%s: %s is placed at %q, want one of %v", name, s.Device.ID, s.Device.Function(), s.Functions)
	}
	for _, n := range s.Allocation.Nodes {
		covered := slices.ContainsFunc(s.Device.Class.DevNodes, func(pattern string) bool { return udev.Glob(pattern, n.Container) })
		if !covered {
			t.Errorf("%s: class %s hands out %s, which its DevNodes do not cover", name, s.Device.Class.Name, n.Container)
		}
		if !path.IsAbs(n.Host) || !path.IsAbs(n.Container) {
			t.Errorf("%s: %s gets the node %+v", name, s.Device.ID, n)
		}
	}
}

// Hardware may vanish at any moment. No class may then fail or report a wrong device.
func TestInspectVanishingDevice(t *testing.T) {
	rules := slices.Concat(everything, anyNode(nil))
	for name, text := range recordings(t) {
		h, devices := machine(t, text)
		for _, u := range devices {
			if err := os.RemoveAll(h.Path(u.SysPath)); err != nil {
				t.Fatal(err)
			}
			if sightings := device.Inspect(h, rules, &u); len(sightings) > 0 {
				t.Errorf("%s: %s is gone, and seen", name, u.SysPath)
			}
			if err := os.MkdirAll(h.Path(u.SysPath), 0o755); err != nil { // the directory still exists, but its attributes have vanished
				t.Fatal(err)
			}
			for _, s := range device.Inspect(h, rules, &u) {
				checkSighting(t, name, s)
			}
		}
	}
}

// If a PCI function does not answer, each device, part and port behind it must be unhealthy.
func TestUnhealthyFunctionAffectsAllParts(t *testing.T) {
	rules := slices.Concat(everything, anyNode(nil))
	sick := 0
	for name, text := range recordings(t) {
		h, devices := machine(t, text)
		for _, function := range functionsIn(inspectAll(h, rules, devices)) {
			if status, _ := h.Attr(function, "power/runtime_status"); status == "suspended" {
				continue
			}
			config := h.Path(function + "/config")
			before, err := os.ReadFile(config)
			if os.IsNotExist(err) {
				before, err = []byte("answers"), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(config, []byte(strings.Repeat("\xff", 64)), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, s := range inspectAll(h, rules, devices) {
				reached := slices.Equal(s.Functions, []string{function}) // through this function only
				if reached && s.Health == nil {
					t.Errorf("%s: %s is well, though %s does not answer", name, s.Device.ID, function)
				}
				if reached {
					sick++
				}
			}
			if err := os.WriteFile(config, before, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if sick < 100 {
		t.Errorf("only %d devices are reached by a function", sick)
	}
}

// functionsIn returns the PCI functions through which devices are reached, without duplicates.
func functionsIn(sightings []device.Sighting) []string {
	var functions []string
	for _, s := range sightings {
		functions = append(functions, s.Functions...)
	}
	slices.Sort(functions)
	return slices.Compact(functions)
}

// TestWokenBy checks which events of other devices require an inspection of a class. NVIDIA's modules create nodes without an
// event, the node of an adapter is its sibling, and so is the management function of an FPGA card.
func TestWokenBy(t *testing.T) {
	_, modules := machine(t, "P: /module/nvidia_uvm\nE: SUBSYSTEM=module\n\nP: /module/nvme\nE: SUBSYSTEM=module\n")
	_, adapters := loadMachine(t, "infiniband-mlx5")
	_, cards := loadMachine(t, "fpga-xrt")
	siblings := []string{"infiniband_verbs", "infiniband_mad", "misc"}
	for _, d := range slices.Concat(modules, adapters, cards) {
		gpu, fpga := d.SysPath == "/sys/module/nvidia_uvm", d.Properties.Value("DRIVER") == "xclmgmt"
		if device.GPU.WokenBy(d) != gpu || device.FPGA.WokenBy(d) != fpga || device.InfiniBand.WokenBy(d) != slices.Contains(siblings, d.Subsystem) {
			t.Errorf("%s wakes other classes", d.SysPath)
		}
	}
}
