// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
)

// Limits on what is taken for a recording. A machine of 10,000 devices has some 20 MB in 600,000 lines.
const (
	maxText  = 64 << 20
	maxLines = 2 << 20
)

// Parse reads the text of a recording. An error names the line and says what was expected there.
func Parse(text []byte) (*Recording, error) {
	r, err := parse(text)
	if err != nil {
		return nil, err
	}
	return r.checked()
}

// parse is Parse without the proof that the devices fit together.
func parse(text []byte) (*Recording, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("read recording: %d bytes are more than %d", len(text), maxText)
	}
	p := parser{seen: make(map[string]int), recording: new(Recording)}
	for line := range strings.Lines(string(text)) {
		p.line++
		if err := p.parseLine(strings.TrimRight(line, "\r\n")); err != nil {
			return nil, fmt.Errorf("line %d: %w", p.line, err)
		}
	}
	if err := p.endBlock(); err != nil {
		return nil, err
	}
	p.recording.sort()
	return p.recording, nil
}

// parser is the state between two lines.
type parser struct {
	recording *Recording
	block     *block         // nil between blocks
	line      int            // counts from 1
	seen      map[string]int // path of a device to its line
}

func (p *parser) parseLine(line string) error {
	if p.line > maxLines {
		return fmt.Errorf("expected at most %d lines", maxLines)
	}
	if strings.TrimSpace(line) == "" {
		return p.endBlock()
	}
	if line[0] == '#' {
		return nil
	}
	tag, value, ok := strings.Cut(line, ":")
	if !ok || len(tag) != 1 || value != "" && value[0] != ' ' {
		return fmt.Errorf("expected a letter, a colon and a blank, found %s", clip(line))
	}
	value = strings.TrimPrefix(value, " ")
	switch {
	case tag == "F":
		return p.parseFile(value)
	case tag == "P":
		return p.beginBlock(value)
	case p.block == nil:
		return fmt.Errorf(`expected "P: /devices/…" to begin a device, found %s`, clip(line))
	}
	return p.parseField(tag[0], value)
}

// parseField reads a line inside a block.
func (p *parser) parseField(tag byte, value string) error {
	switch tag {
	case 'N':
		return p.block.setNode(value)
	case 'S':
		return p.block.addLink(value)
	case 'E':
		return p.parseProperty(value)
	case 'A', 'H':
		return p.parseAttr(value, tag == 'H')
	case 'L':
		return p.parseLink(value)
	case 'M', 'R', 'J', 'U', 'T', 'D', 'I', 'Q', 'V', 'B':
		return nil // udevadm(8), info: all of it is in the properties too
	}
	return fmt.Errorf("expected one of P: N: S: E: A: H: L: F:, found %q", string(tag)+":")
}

func (p *parser) beginBlock(devPath string) error {
	if p.block != nil {
		return fmt.Errorf("expected a blank line before the next device, found P: %s", clip(devPath))
	}
	if !strings.HasPrefix(devPath, "/devices/") && !strings.HasPrefix(devPath, "/module/") {
		return fmt.Errorf("expected a path that begins with /devices/, found %s", clip(devPath))
	}
	if err := checkName(devPath[1:]); err != nil {
		return err
	}
	if first, ok := p.seen[devPath]; ok {
		return fmt.Errorf("expected each device once, found %s again, first in line %d", clip(devPath), first)
	}
	p.seen[devPath] = p.line
	p.block = newBlock(devPath, p.line)
	return nil
}

func (p *parser) endBlock() error {
	if p.block == nil {
		return nil
	}
	d, err := p.block.finish()
	if err != nil {
		return fmt.Errorf("line %d: device %s: %w", p.block.device.line, clip(p.block.device.path), err)
	}
	p.recording.devices = append(p.recording.devices, d)
	p.block = nil
	return nil
}

func (p *parser) parseProperty(text string) error {
	key, value, err := cut(text)
	if err != nil {
		return err
	}
	return p.block.setProperty(key, value)
}

func (p *parser) parseAttr(text string, binary bool) error {
	name, value, err := p.named(text)
	if err != nil {
		return err
	}
	if binary {
		value, err = unhex(value)
	} else {
		value, err = unescape(value)
	}
	if err != nil {
		return fmt.Errorf("attribute %s: %w", clip(name), err)
	}
	p.block.addAttr(attr{name: name, value: value, line: p.line})
	return nil
}

func (p *parser) parseLink(text string) error {
	if isNumber(text) || isNumber(strings.TrimPrefix(text, "-")) {
		return nil // udevadm's link priority
	}
	name, target, err := p.named(text)
	if err != nil {
		return err
	}
	if err := checkTarget(path.Dir(p.block.device.path+"/"+name), target); err != nil {
		return fmt.Errorf("link %s: %w", clip(name), err)
	}
	p.block.addAttr(attr{name: name, value: target, link: true, line: p.line})
	return nil
}

func (p *parser) parseFile(text string) error {
	name, value, _ := strings.Cut(text, "=")
	if !strings.HasPrefix(name, "/proc/") && !strings.HasPrefix(name, "/dev/") {
		return fmt.Errorf("expected a path below /proc or /dev, found %s", clip(name))
	}
	if err := checkName(strings.TrimSuffix(name, "/")[1:]); err != nil {
		return err
	}
	value, err := unescape(value)
	if err != nil {
		return fmt.Errorf("file %s: %w", clip(name), err)
	}
	if strings.HasSuffix(name, "/") && value != "" {
		return fmt.Errorf("expected no content of the directory %s", clip(name))
	}
	p.recording.files = append(p.recording.files, file{name, value, p.line})
	return nil
}

// named cuts NAME=VALUE, with the name of an attribute of the present device.
func (p *parser) named(text string) (name, value string, err error) {
	name, value, err = cut(text)
	if err != nil {
		return "", "", err
	}
	return name, value, checkName(strings.TrimPrefix(p.block.device.path, "/") + "/" + name)
}

func cut(text string) (key, value string, err error) {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return "", "", fmt.Errorf("expected NAME=VALUE, found %s", clip(text))
	}
	return key, value, nil
}

func unhex(text string) (string, error) {
	decoded, err := hex.DecodeString(text)
	if err != nil {
		return "", errors.New("expected pairs of hexadecimal digits, found " + clip(text))
	}
	return string(decoded), nil
}
