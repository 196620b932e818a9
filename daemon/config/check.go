// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// Characters that are allowed in names.
const (
	lowerLetters = "abcdefghijklmnopqrstuvwxyz"
	letters      = lowerLetters + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits       = "0123456789"
)

const (
	// domainSize and wordSize are the maximum lengths, in bytes, of the two parts of a resource name. A subdomain may be up
	// to 253 bytes long, but the kubelet adds the prefix "requests." before it checks the name.
	domainSize = 253 - len("requests.")
	wordSize   = 63
	// unitSize is the maximum length of a systemd unit's name (UNIT_NAME_MAX without the terminating NUL).
	unitSize = 255
	// socketSize is the maximum length of a unix socket's path (sun_path in unix(7) without the terminating NUL).
	socketSize = 107
	// endpoint is as long as the longest name of a metalplug socket in the device plugin directory, after the directory's path.
	endpoint = "/mp-12345678-1234567890123.sock"
)

// containsOnly reports whether s is not empty and contains only characters in the set chars. Names are checked without package
// regexp, which would add 0.3 MB to a helper program.
func containsOnly(s, chars string) bool { return s != "" && strings.Trim(s, chars) == "" }

// isWord reports whether s starts and ends with a character in the set chars. The characters in between may also be in the set
// inner.
func isWord(s, chars, inner string) bool {
	return containsOnly(s, chars+inner) && !strings.ContainsAny(s[:1]+s[len(s)-1:], inner)
}

// isResourceName reports whether a name consists of a DNS-1123 subdomain, a slash, and the name part of a Kubernetes
// qualified name.
func isResourceName(name string) bool {
	domain, rest, _ := strings.Cut(name, "/")
	for label := range strings.SplitSeq(domain, ".") {
		if !isWord(label, lowerLetters+digits, "-") {
			return false
		}
	}
	return isWord(rest, letters+digits, "-_.")
}

// isCDIWord reports whether s can be the vendor or the class in a CDI kind.
func isCDIWord(s string) bool {
	return isWord(s, letters+digits, "-_.") && !strings.ContainsAny(s[:1], digits)
}

// isProperty reports whether key can be the name of a udev property.
func isProperty(key string) bool {
	return containsOnly(key, letters+digits+"_.-") && !strings.ContainsAny(key[:1], digits+"-")
}

// checkName checks a resource name in the same way as the kubelet does during registration (IsExtendedResourceName in
// k8s.io/kubernetes/pkg/apis/core/v1/helper).
func checkName(name string) error {
	domain, rest, _ := strings.Cut(name, "/")
	switch {
	case strings.Contains(name, "kubernetes.io/"), strings.HasPrefix(name, "requests."):
		return fmt.Errorf("%s is reserved for Kubernetes; use your own domain", quote(name))
	case !isResourceName(name), len(domain) > domainSize, len(rest) > wordSize:
		return fmt.Errorf(`%s is not a resource name like "example.com/name": at most %d lower-case letters, digits, "-" and ".", a slash, `+
			`and at most %d letters, digits, "-", "_" and "."`, quote(name), domainSize, wordSize)
	}
	return nil
}

// checkCDIKind checks a CDI kind against the section "Kind" of the CDI specification. The kind may be empty.
func checkCDIKind(kind string) error {
	if kind == "" {
		return nil
	}
	vendor, class, ok := strings.Cut(kind, "/")
	if !ok || !isCDIWord(vendor) || !isCDIWord(class) {
		return fmt.Errorf(`%s is not vendor/class`, quote(kind))
	}
	return nil
}

// checkPermissions accepts any combination of r, w and m.
func checkPermissions(permissions string) error {
	if permissions == "" {
		return errors.New("is empty, so containers cannot use the device")
	}
	for i, p := range permissions {
		if !strings.ContainsRune("rwm", p) || strings.ContainsRune(permissions[:i], p) {
			return fmt.Errorf(`%s is not a combination of "r", "w" and "m", each at most once`, quote(permissions))
		}
	}
	return nil
}

// checkUnit accepts an empty name, or the name of a template unit of type service.
func checkUnit(name string) error {
	prefix, template := strings.CutSuffix(name, "@.service")
	if name != "" && (len(name) > unitSize || !template || !containsOnly(prefix, letters+digits+`:_.\-`)) {
		return fmt.Errorf(`%s is not a template unit like "name@.service"`, quote(name))
	}
	return nil
}

// checkProperty accepts the keys of Match and Exclude in a [device.Rule].
func checkProperty(key string) error {
	if name, ok := device.AttrKey(key); ok {
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return fmt.Errorf(`%s is not an attribute below the device in sysfs; write "ATTR{size}"`, quote(name))
		}
		return nil
	}
	if !isProperty(key) {
		return errors.New(`is neither a udev property like "PCI_ID" nor "ATTR{name}"; write ID_MODEL or "ATTR{size}"`)
	}
	return nil
}

// checkPattern accepts the values of Match and Exclude in a [device.Rule].
func checkPattern(pattern string) error {
	if err := udev.CheckGlob(pattern); err != nil {
		return fmt.Errorf(`%s is not a valid pattern: it has an unclosed "[" or ends in "\"`, quote(pattern))
	}
	return nil
}

// placeholders lists the parts of a template that daemon/plugin replaces.
var placeholders = []string{"{id}", "{pci}", "{node}"}

// visibleGPUs is the variable from which NVIDIA's runtime reads the GPUs of a container.
const visibleGPUs = "NVIDIA_VISIBLE_DEVICES"

// checkVariable accepts the names that Kubernetes and POSIX (IEEE Std 1003.1, 8.1) allow for environment variables, except the
// names of variables that metalplug itself sets.
func checkVariable(name string) error {
	if !containsOnly(name, letters+digits+"_") || strings.ContainsAny(name[:1], digits) {
		return errors.New(`is not a valid variable name; write letters, digits and "_", and do not begin with a digit`)
	}
	if strings.HasPrefix(name, variablePrefix) {
		return fmt.Errorf("is reserved for metalplug; use a name without %s", variablePrefix)
	}
	return nil
}

// checkTemplate accepts the values of [Resource.Env]. Braces may contain only the name of a value that daemon/plugin
// inserts.
func checkTemplate(text string) error {
	for _, part := range strings.Split(text, "{")[1:] {
		inside, _, closed := strings.Cut(part, "}")
		if found := "{" + inside + "}"; closed && !slices.Contains(placeholders, found) {
			return fmt.Errorf("%s is not a placeholder; write %s", quote(found), Alternatives(placeholders))
		}
	}
	switch {
	case strings.Contains(text, "${"), strings.Contains(text, "{{"):
		return fmt.Errorf(`%s is not a template; write {id}, without "$" and with single braces`, quote(text))
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("%s contains a zero byte", quote(text))
	}
	return nil
}

// checkPath accepts absolute paths.
func checkPath(name string) error {
	if !filepath.IsAbs(name) || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%s is not an absolute path", quote(name))
	}
	return nil
}

// checkSocket accepts the path of a socket. If file is not empty, the path is that of a directory in which the socket has this name.
func checkSocket(path, file string) error {
	if most := socketSize - len(file); len(path) > most {
		return fmt.Errorf("%s is %d bytes long, but must be at most %d, because the path of a socket is limited to %d", quote(path), len(path), most, socketSize)
	}
	return nil
}
