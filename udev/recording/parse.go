// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// Parse parses a recording's text. An error contains the line number and says what was expected on that line.
func Parse(text []byte) (*Recording, error) {
	p := parser{recording: &Recording{make(map[string]device), make(map[string]bool), newTree()}}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := p.parseLine(strings.TrimRight(line, "\r\n")); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := p.endBlock(); err != nil {
		return nil, fmt.Errorf("line %d: %w", number, err)
	}
	// Derived entries are added last, because entries in the text take precedence over them.
	for _, d := range p.recording.Devices() {
		p.recording.tree.derive(d)
	}
	return p.recording, nil
}

// parser contains the parser's state between two lines of a recording.
type parser struct {
	recording  *Recording
	path       string // path below /sys of the device in this block, or empty between blocks
	text       strings.Builder
	properties map[string]string
	node       string // name below /dev, such as "nvme0", from line N
	links      []string
}

func (p *parser) parseLine(line string) error {
	switch {
	case strings.TrimSpace(line) == "":
		return p.endBlock()
	case line[0] == '#':
		return nil
	case strings.ContainsRune(line, 0):
		return errors.New("expected no NUL")
	}
	tag, value, ok := strings.Cut(line, ":")
	if !ok || len(tag) != 1 || value != "" && value[0] != ' ' {
		return fmt.Errorf("expected a letter, a colon and a space, found %s", quoteShort(line))
	}
	value = strings.TrimPrefix(value, " ")
	switch {
	case tag == "F":
		return p.parseFile(value)
	case tag == "P":
		return p.beginBlock(value)
	case p.path == "":
		return fmt.Errorf(`expected "P: /devices/…" to begin a device, found %s`, quoteShort(line))
	}
	p.text.WriteString(line + "\n")
	return p.parseField(tag[0], value)
}

// parseField parses a line inside a block.
func (p *parser) parseField(tag byte, value string) error {
	switch tag {
	case 'N':
		p.node, _, _ = strings.Cut(value, "=")
		return nil
	case 'S':
		p.links = append(p.links, "/dev/"+value)
		return nil
	case 'E':
		key, value, err := cutPair(value)
		p.properties[key] = value
		return err
	case 'A':
		return p.parseAttr(value, unescape)
	case 'H':
		return p.parseAttr(value, unhex)
	case 'L':
		return p.parseLink(value)
	case 'M', 'R', 'J', 'U', 'T', 'D', 'I', 'Q', 'V', 'B':
		// The line repeats information from the properties (udevadm(8), command info).
		return nil
	}
	return fmt.Errorf("expected one of P: N: S: E: A: H: L: F:, found %q", string(tag)+":")
}

func (p *parser) beginBlock(devPath string) error {
	if p.path != "" {
		return fmt.Errorf("expected a blank line before the next device, found P: %s", quoteShort(devPath))
	}
	if !strings.HasPrefix(devPath, "/devices/") && !strings.HasPrefix(devPath, "/module/") {
		return fmt.Errorf("expected a path that begins with /devices/, found %s", quoteShort(devPath))
	}
	if _, again := p.recording.devices["/sys"+devPath]; again {
		return fmt.Errorf("expected each device once, found %s again", quoteShort(devPath))
	}
	*p = parser{recording: p.recording, path: devPath, properties: make(map[string]string)}
	return p.recording.tree.addDir("sys" + devPath)
}

// endBlock ends a block, and adds its device to the recording. The node and the links become properties, even if the text
// contains them only in lines N and S.
func (p *parser) endBlock() error {
	if p.path == "" {
		return nil
	}
	all := p.properties
	if p.node != "" {
		all["DEVNAME"] = p.node
	}
	if len(p.links) > 0 && all["DEVLINKS"] == "" {
		all["DEVLINKS"] = strings.Join(p.links, " ")
	}
	d := udev.NewDevice("/sys"+p.path, all)
	if d.Subsystem == "" {
		return fmt.Errorf(`device %s: expected a line "E: SUBSYSTEM=…"`, quoteShort(p.path))
	}
	p.recording.devices[d.SysPath] = device{d, p.text.String()}
	p.path = ""
	if d.DevNode == "" {
		return nil
	}
	return p.recording.tree.add(d.DevNode[1:], entry{kind: isFile})
}

func (p *parser) parseAttr(text string, decode func(string) (string, error)) error {
	name, value, err := cutPair(text)
	if err != nil {
		return err
	}
	if value, err = decode(value); err != nil {
		return fmt.Errorf("attribute %s: %w", quoteShort(name), err)
	}
	return p.recording.tree.add("sys"+p.path+"/"+name, entry{value, isFile})
}

func (p *parser) parseLink(text string) error {
	if _, err := strconv.Atoi(text); err == nil {
		return nil // the line contains a link priority from udevadm
	}
	name, target, err := cutPair(text)
	if err != nil {
		return err
	}
	link := "sys" + p.path + "/" + name
	if err := checkTarget(path.Dir(link), target); err != nil {
		return err
	}
	return p.recording.tree.add(link, entry{target, isLink})
}

func (p *parser) parseFile(text string) error {
	name, value, _ := strings.Cut(text, "=")
	if !strings.HasPrefix(name, "/proc/") && !strings.HasPrefix(name, "/dev/") {
		return fmt.Errorf("expected a path below /proc or /dev, found %s", quoteShort(name))
	}
	file, isDir := strings.CutSuffix(name[1:], "/")
	value, err := unescape(value)
	switch {
	case err != nil:
		return fmt.Errorf("file %s: %w", quoteShort(name), err)
	case isDir:
		err = p.recording.tree.addDir(file)
	default:
		err = p.recording.tree.add(file, entry{value, isFile})
	}
	p.recording.files[file] = true
	return err
}

func cutPair(text string) (key, value string, err error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return "", "", fmt.Errorf("expected NAME=VALUE, found %s", quoteShort(text))
	}
	return key, value, nil
}

func unhex(text string) (string, error) {
	decoded, err := hex.DecodeString(text)
	if err != nil {
		return "", errors.New("expected pairs of hexadecimal digits, found " + quoteShort(text))
	}
	return string(decoded), nil
}

// unescape reverses g_strescape, which umockdev-record uses to write attributes. unescape accepts octal numbers and C's escapes
// with a letter.
func unescape(text string) (string, error) {
	var b strings.Builder
	b.Grow(len(text))
	for {
		i := strings.IndexByte(text, '\\')
		if i < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		char, unicode, rest, err := strconv.UnquoteChar(text[i:], '"')
		if err != nil || unicode {
			return "", fmt.Errorf(`expected one of \n \t \r \b \f \v \" \\ and \ooo, found %s`, quoteShort(text[i:]))
		}
		b.WriteString(text[:i])
		b.WriteByte(byte(char))
		text = rest
	}
}

// quoteShort quotes an unexpected text, and shortens it so that it fits on one log line.
func quoteShort(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
