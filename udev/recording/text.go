// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Limits on paths: NAME_MAX of Linux, its PATH_MAX with room for the root, and far more levels than sysfs has.
const (
	maxElement = 255
	maxPath    = 3072
	maxDepth   = 64
)

// unescape undoes g_strescape, with which umockdev-record writes attributes: the letters of C and octal numbers.
func unescape(text string) (string, error) {
	if !strings.Contains(text, `\`) {
		return text, nil
	}
	var b strings.Builder
	b.Grow(len(text))
	for {
		before, after, found := strings.Cut(text, `\`)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		char, length := escaped(after)
		if length == 0 {
			return "", fmt.Errorf(`expected one of \n \t \r \b \f \v \" \\ and \ooo, found %s`, clip(`\`+after))
		}
		b.WriteByte(char)
		text = after[length:]
	}
}

// escaped decodes what follows a backslash, and says how many bytes that took; 0: it is none of the escapes.
func escaped(text string) (char byte, length int) {
	if text == "" {
		return 0, 0
	}
	if i := strings.IndexByte(`ntrbfv"\`, text[0]); i >= 0 {
		return "\n\t\r\b\f\v\"\\"[i], 1
	}
	for length < 3 && length < len(text) && text[length] >= '0' && text[length] <= '7' {
		length++
	}
	n, err := strconv.ParseUint(text[:length], 8, 8)
	if err != nil {
		return 0, 0
	}
	return byte(n), length
}

// checkName tells what keeps a relative path from being the name of a file below root.
func checkName(name string) error {
	if len(name) > maxPath {
		return fmt.Errorf("expected at most %d bytes of path, found %d", maxPath, len(name))
	}
	if strings.Count(name, "/") >= maxDepth {
		return fmt.Errorf("expected at most %d levels in %s", maxDepth, clip(name))
	}
	for element := range strings.SplitSeq(name, "/") {
		if err := checkElement(element); err != nil {
			return fmt.Errorf("%w in %s", err, clip(name))
		}
	}
	return nil
}

func checkElement(element string) error {
	switch {
	case element == "":
		return errors.New("expected no empty name")
	case element == "." || element == "..":
		return fmt.Errorf("expected no %q", element)
	case len(element) > maxElement:
		return fmt.Errorf("expected at most %d bytes of name, found %d", maxElement, len(element))
	case strings.ContainsRune(element, 0):
		return errors.New("expected no NUL")
	}
	return nil
}

// checkTarget tells what is wrong with the target of a link in the directory dir below /sys. No link may lead out of
// sysfs: with ".." only at its beginning, counting levels is proof.
func checkTarget(dir, target string) error {
	up := 0
	for rest, ok := strings.CutPrefix(target+"/", "../"); ok; rest, ok = strings.CutPrefix(rest, "../") {
		up++
	}
	down := strings.TrimPrefix((target + "/")[3*up:], "/")
	if strings.HasPrefix(target, "/") {
		return fmt.Errorf("expected a relative target, found %s", clip(target))
	}
	if up > strings.Count(path.Clean(dir), "/") {
		return fmt.Errorf("expected a target inside /sys, found %s", clip(target))
	}
	if down == "" && up > 0 {
		return nil
	}
	return checkName(strings.TrimSuffix(down, "/"))
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}

// clip quotes what was found, short enough for a line of a log.
func clip(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
