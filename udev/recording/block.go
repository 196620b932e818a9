// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// block is a device of which not all lines have been read.
type block struct {
	device     *device
	properties map[string]string
	kernel     strings.Builder // the properties that the kernel would report, in the order of the text
}

func newBlock(devPath string, line int) *block {
	devPath = strings.Clone(devPath)
	return &block{
		device:     &device{Device: udev.Device{SysPath: "/sys" + devPath}, path: devPath, line: line},
		properties: make(map[string]string),
	}
}

func (b *block) addAttr(a attr) { b.device.attrs = append(b.device.attrs, a) }

func (b *block) addLink(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if !slices.Contains(b.device.links, name) {
		b.device.links = append(b.device.links, strings.Clone(name))
	}
	return nil
}

func (b *block) setNode(text string) (err error) {
	name, content, _ := strings.Cut(text, "=")
	if b.device.content, err = unhex(content); err != nil {
		return fmt.Errorf("node %s: %w", clip(name), err)
	}
	return b.nameNode(name)
}

// nameNode takes the name from N: or DEVNAME, which have to agree.
func (b *block) nameNode(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if b.device.node != "" && b.device.node != name {
		return fmt.Errorf("expected the same node in N: and DEVNAME, found %s and %s", clip(b.device.node), clip(name))
	}
	b.device.node = strings.Clone(name)
	return nil
}

func (b *block) setProperty(key, value string) error {
	if strings.ContainsRune(key+value, 0) {
		return errors.New("expected no NUL in a property")
	}
	switch key {
	case "DEVPATH":
		return nil
	case "DEVNAME":
		value = strings.TrimPrefix(value, "/dev/")
		if err := b.nameNode(value); err != nil {
			return err
		}
	case "DEVLINKS":
		if err := b.addLinks(value); err != nil {
			return err
		}
	case "SUBSYSTEM":
		if err := checkElement(value); err != nil {
			return err
		}
	case "MAJOR", "MINOR":
		if !isNumber(value) {
			return fmt.Errorf("expected a number, found %s=%s", key, clip(value))
		}
	}
	if _, again := b.properties[key]; again {
		return fmt.Errorf("expected each property once, found %s again", clip(key))
	}
	if ofKernel(key) {
		b.kernel.WriteString(key + "=" + value + "\n")
	}
	b.properties[key] = value
	return nil
}

func (b *block) addLinks(devlinks string) error {
	for _, link := range strings.Fields(devlinks) {
		name, ok := strings.CutPrefix(link, "/dev/")
		if !ok {
			return fmt.Errorf("expected DEVLINKS below /dev, found %s", clip(link))
		}
		if err := b.addLink(name); err != nil {
			return err
		}
	}
	return nil
}

// finish fills in what follows from the lines. The name of a node and its links are properties even where the text has
// them only as N: and S:.
func (b *block) finish() (*device, error) {
	d, properties := b.device, b.properties
	if properties["SUBSYSTEM"] == "" {
		return nil, errors.New(`expected a line "E: SUBSYSTEM=…"`)
	}
	if (properties["MAJOR"] == "") != (properties["MINOR"] == "") {
		return nil, errors.New("expected both of MAJOR and MINOR, or none")
	}
	if d.node != "" {
		if properties["DEVNAME"] == "" {
			b.kernel.WriteString("DEVNAME=" + d.node + "\n")
		}
		properties["DEVNAME"] = "/dev/" + d.node
	}
	if len(d.links) > 0 && properties["DEVLINKS"] == "" {
		properties["DEVLINKS"] = "/dev/" + strings.Join(d.links, " /dev/")
	}
	all := udev.NewProperties(properties)
	d.Properties, d.Subsystem, d.DevType, d.uevent = all, all.Value("SUBSYSTEM"), all.Value("DEVTYPE"), b.kernel.String()
	d.DevNode = all.Value("DEVNAME")
	sortAttrs(d.attrs)
	return d, nil
}

// ofKernel tells whether the kernel reports a property: all but those that udevd and its rules add.
func ofKernel(key string) bool {
	switch key {
	case "ACTION", "SEQNUM", "SUBSYSTEM", "DEVLINKS", "TAGS", "CURRENT_TAGS", "USEC_INITIALIZED":
		return false
	}
	for _, prefix := range []string{"ID_", "UDEV_", "SYSTEMD_", "DM_", "LIBINPUT_"} {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	return true
}
